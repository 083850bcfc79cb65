"""The loss of Ray itself and of machines: a run goes on, or ends with a hint and goes on without Ray."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fedmime as fm

psutil = pytest.importorskip("psutil", reason="finds the processes of Ray")
pytest.importorskip("ray", reason="the extra fedmime[ray] is not installed")

SOURCE = Path(fm.__file__).parents[1]
TRAIN = ["train", "--task", "digits-logistic", "--checkpoint-every", "5", "--quiet"]
LONG = ["--rounds", "100000"]


def _fedmime(words: list[Any], devices: int = 2, **variables: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from fedmime.cli.main import script; script()", *map(str, words)]
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "JAX_NUM_CPU_DEVICES": str(devices)} | variables
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def _ended(words: list[Any], devices: int = 2) -> str:
    """What a command has said that ended well."""
    run = _fedmime(words, devices)
    told = run.communicate(timeout=200)[1]
    assert run.returncode == 0, told
    return told


def _rows(run: Path) -> list[dict[str, Any]]:
    metrics = run / "metrics.jsonl"
    return [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []


def _await(run: subprocess.Popen[str], met: Any) -> None:
    until = time.monotonic() + 200
    while not met():
        time.sleep(0.2)
        assert run.poll() is None, run.communicate()[1]
        assert time.monotonic() < until


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "code", "words"),
    [("gcs_server", 7, "the head of the cluster does not answer"), ("raylet/raylet", 1, "was ended suddenly")],
)
@pytest.mark.parametrize("algorithm", ["mime", "scaffold"])
def test_a_run_without_its_ray_goes_on_here(algorithm: str, victim: str, code: int, words: str, tmp_path: Path) -> None:
    """It ends with the bits of a run that was never on Ray, on as many devices as there were workers."""
    train = [*TRAIN, "--algorithm", algorithm]
    run = _fedmime([*train, *LONG, "--backend", "ray", "--out", tmp_path / "run"])
    _await(run, lambda: len(_rows(tmp_path / "run")) >= 12)
    processes = psutil.Process(run.pid).children(recursive=True)
    found = [process for process in processes if victim in process.cmdline()[0]]
    os.kill(found[0].pid, signal.SIGKILL)
    told = run.communicate(timeout=120)[1]
    assert (run.returncode, words in told, "resume goes on" in told) == (code, True, True)
    psutil.wait_procs(processes, timeout=60)
    assert not [process for process in processes if process.is_running()]
    rounds = len(_rows(tmp_path / "run")) + 2
    assert "goes on with" not in _ended(["resume", tmp_path / "run", "--rounds", rounds, "--quiet"])
    _ended([*train, "--rounds", rounds, "--out", tmp_path / "local"])
    assert not {"workers", "workers_lost"} & _rows(tmp_path / "run")[-1].keys()
    ours, theirs = (fm.Run.load(tmp_path / name) for name in ("run", "local"))
    for name in ("loss", "test_loss", "update_norm"):
        assert ours.history[name].tobytes() == theirs.history[name].tobytes()
    one, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("run", "local"))
    assert one.partition(b"}}")[2] == other.partition(b"}}")[2]  # the arrays, after the header
    told = _ended(["resume", tmp_path / "run", "--rounds", rounds + 1, "--quiet"], devices=1)
    assert "was computed on 2 devices and goes on with 1 device" in told


@pytest.mark.slow
def test_a_killed_run_leaves_no_process_of_its_ray(tmp_path: Path) -> None:
    run = _fedmime([*TRAIN, *LONG, "--backend", "ray", "--out", tmp_path / "run"])
    _await(run, lambda: len(_rows(tmp_path / "run")) >= 2)
    processes = psutil.Process(run.pid).children(recursive=True)
    assert any("raylet/raylet" in word for process in processes for word in process.cmdline())
    os.kill(run.pid, signal.SIGKILL)
    assert "was ended suddenly" in run.communicate(timeout=120)[1]
    psutil.wait_procs(processes, timeout=60)
    assert not [process for process in processes if process.is_running()]


@pytest.fixture
def cluster() -> Iterator[subprocess.Popen[str]]:
    """The script that has the cluster, whose environment has the token."""
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    command = [sys.executable, str(Path(__file__).with_name("ray_nodes.py"))]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **pipes, text=True) as process:
        yield process
        process.communicate(timeout=60)
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        del os.environ[name]


def _do(cluster: subprocess.Popen[str], what: str) -> None:
    cluster.stdin.write(what + "\n")
    cluster.stdin.flush()
    assert cluster.stdout.readline() == "done\n"


@pytest.mark.slow
def test_machines_join_and_leave(cluster: subprocess.Popen[str], tmp_path: Path, fact: Any) -> None:
    """There is room for one worker of two, then for both, then one's machine is lost, and another one comes."""
    address, path = cluster.stdout.readline().strip(), tmp_path / "run"
    asked = [*TRAIN, "--algorithm", "scaffold"]
    run = _fedmime([*asked, *LONG, "--backend", "ray", "--ray-address", address, "--out", path])
    workers = lambda: _rows(path)[-1]["workers"] if _rows(path) else 0
    _await(run, lambda: workers() == 1)
    for _ in range(2):
        _do(cluster, "add")
        _await(run, lambda: workers() == 2)
        start = time.monotonic()
        _do(cluster, "kill")
        _await(run, lambda: workers() == 1)
        fact("seconds until a run goes on whose machine was killed", time.monotonic() - start)
    os.kill(run.pid, signal.SIGTERM)
    told = run.communicate(timeout=120)[1]
    assert run.returncode == 143, told
    assert "ray: 1 of 2 workers are ready; others join the run when they are" in told
    assert told.count("is lost and is replaced") == sum(row["workers_lost"] for row in _rows(path)) == 2
    _ended([*asked, "--rounds", len(_rows(path)), "--out", tmp_path / "local"])
    ours, theirs = (fm.Run.load(each).history["loss"] for each in (path, tmp_path / "local"))
    assert ours.tobytes() == theirs.tobytes()


@pytest.mark.slow
def test_a_wrong_token_is_one_line(cluster: subprocess.Popen[str], tmp_path: Path) -> None:
    address = cluster.stdout.readline().strip()
    run = _fedmime([*TRAIN, "--backend", "ray", "--ray-address", address, "--out", tmp_path], RAY_AUTH_TOKEN="b" * 64)
    told = run.communicate(timeout=200)[1]
    words = f"fedmime: ray: {address!r} refuses the token; take the one of the cluster (docs/cluster.md)\n"
    assert (run.returncode, told) == (2, words)


def test_nobody_at_an_address_is_one_line(tmp_path: Path) -> None:
    run = _fedmime(
        [*TRAIN, "--backend", "ray", "--ray-address", "127.0.0.1:1", "--out", tmp_path], RAY_AUTH_TOKEN="a" * 64
    )
    assert run.communicate(timeout=120)[1] == "fedmime: ray: '127.0.0.1:1' cannot be joined: Connection refused\n"
    assert run.returncode == 7
