"""The loss of Ray itself: the run ends with a hint, its checkpoints are whole, and it goes on without Ray."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import fedmime as fm
from faults.program import said

psutil = pytest.importorskip("psutil", reason="finds the processes of Ray")
pytest.importorskip("ray", reason="the extra fedmime[ray] is not installed")

SOURCE = Path(fm.__file__).parents[1]
ASKED = ["--task", "digits-logistic", "--algorithm", "mime", "--rounds", "100000", "--checkpoint-every", "5"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "code", "words"),
    [("gcs_server", 7, "the head of the cluster does not answer"), ("raylet/raylet", 1, "was ended suddenly")],
)
def test_a_run_without_its_ray_can_go_on(victim: str, code: int, words: str, tmp_path: Path, capsys) -> None:
    command = [sys.executable, "-c", "from fedmime.cli.main import script; script()", "train", *ASKED]
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    run = subprocess.Popen(
        [*command, "--backend", "ray", "--out", str(tmp_path / "run"), "--quiet"],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    metrics, until = tmp_path / "run" / "metrics.jsonl", time.monotonic() + 200
    while not metrics.exists() or metrics.read_text().count("\n") < 12:
        time.sleep(0.2)
        assert run.poll() is None
        assert time.monotonic() < until
    processes = psutil.Process(run.pid).children(recursive=True)
    found = [process for process in processes if victim in process.cmdline()[0]]
    os.kill(found[0].pid, signal.SIGKILL)
    _, told = run.communicate(timeout=120)
    assert run.returncode == code
    assert words in told
    assert "resume goes on" in told
    psutil.wait_procs(processes, timeout=60)
    assert not [process for process in processes if process.is_running()]
    rounds = str(metrics.read_text().count("\n") + 2)
    assert said(["resume", tmp_path / "run", "--rounds", rounds, "--quiet"], capsys).code == 0
