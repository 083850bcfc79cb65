"""Fault 25: runs that are killed again and again, in rounds and in saves, end as if nothing had happened."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from faults.program import Child, Server

ROUNDS = 40
METHODS = {
    "mime-adam": ["--algorithm", "mime", "--base", "adam"],
    "scaffold": ["--algorithm", "scaffold"],
    "mime_mvr": ["--algorithm", "mime_mvr"],
}
KILLS = {"mime-adam": 3, "scaffold": 3}
MORE_KILLS = {"mime-adam": 7, "scaffold": 7, "mime_mvr": 6}
MOST_OPERATIONS = 200  # about five rounds: seven such lives do not reach the end
LAUNCH = "from fedmime.cli.main import script; script()"

Start = Callable[..., Child]


def asked(method: str, run: Path, every: int = 2) -> list[object]:
    return [
        "train", "--task", "digits-logistic", "--cohort", "4", "--rounds", ROUNDS, "--quiet",
        *METHODS[method], "--checkpoint-every", every, "--evaluate-every", "5", "--out", run,
    ]  # fmt: skip


def unfinished(run: Path) -> set[str]:
    """Checkpoints that are being written, or never were to their end."""
    there = os.listdir(run / "checkpoints") if (run / "checkpoints").is_dir() else []
    return {name for name in there if not (run / "checkpoints" / name / "MANIFEST.json").exists()}


def lines(run: Path) -> int:
    return (run / "metrics.jsonl").read_bytes().count(b"\n") if (run / "metrics.jsonl").exists() else 0


def live_and_die(start: Start, words: list[object], run: Path, rng: np.random.Generator, kind: str, **fate) -> bool:
    """Go on with a run until it is killed; False if it came to its end before."""
    goes_on = (run / "config.yaml").exists() and rng.random() < 0.5
    child = start(["resume", run, "--quiet"] if goes_on else words, **fate)
    left, target = unfinished(run), lines(run) + int(rng.integers(0, 3))
    if kind == "save":
        child.until(lambda: bool(unfinished(run) - left))
        time.sleep(rng.random() * 0.01)
    elif kind == "round":
        child.until(lambda: lines(run) > target and lines(run) % 2 == 1)  # no save follows
        time.sleep(rng.random() * 0.005)
    elif kind == "start":
        time.sleep(rng.random() * 3)
    if kind != "operation":
        child.kill()
    return child.wait() == -9


def check(run: Path, whole: Path) -> None:
    """Every line once, in order; model and lines the same to the last byte; nothing unfinished lies about."""
    for name in ("metrics.jsonl", "model.safetensors", "best.safetensors"):
        assert (run / name).read_bytes() == (whole / name).read_bytes(), name
    for name in ("metrics.jsonl", "timings.jsonl"):
        rounds = [json.loads(line)["round"] for line in (run / name).read_text().splitlines()]
        assert rounds == list(range(ROUNDS)), name
    assert json.loads((run / "status.json").read_text())["state"] == "done"
    assert not unfinished(run)
    assert not list(run.rglob("*.tmp"))


@pytest.mark.parametrize(
    ("method", "kills"),
    [*KILLS.items(), *(pytest.param(*each, marks=pytest.mark.slow) for each in MORE_KILLS.items())],
)
def test_25_killed_runs_end_like_unbroken_ones(method: str, kills: int, forks: Server, tmp_path: Path, fact) -> None:
    """Seeded kills at file operations, at the sight of a save, and in rounds."""
    rng = np.random.default_rng(list(METHODS).index(method))
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert forks.start(asked(method, whole)).wait() == 0
    in_saves = 0
    for i in range(kills):
        kind = ("operation", "save", "round")[i % 3]
        at = int(rng.integers(1, MOST_OPERATIONS)) if kind == "operation" else MOST_OPERATIONS
        fate = {"dies_at": at, "where": str(run)}
        assert live_and_die(forks.start, asked(method, run), run, rng, kind, **fate)
        in_saves += bool(unfinished(run))
        fact(f"SIGKILLs survived, {'in saves' if unfinished(run) else 'in rounds' if lines(run) % 2 else 'elsewhere'}")
    assert in_saves
    last = forks.start(["resume", run, "--quiet"])
    assert last.wait() == 0, last.said()
    check(run, whole)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_25_twenty_kills_of_the_program(tmp_path: Path, fact) -> None:
    """The same with new interpreters and the clock: 20 kills, each run at most seven times."""
    programs = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "programs")}

    def start(words: list[object]) -> Child:
        said = tmp_path / "said"
        command = [sys.executable, "-c", LAUNCH, *map(str, words)]
        with said.open("w") as file:
            process = subprocess.Popen(command, env={**os.environ, **programs}, stdout=file, stderr=file)
        return Child(process.pid, said, process.wait)

    rng, killed, tried = np.random.default_rng(0), 0, 0
    for method in METHODS:
        assert start(asked(method, tmp_path / method, every=1)).wait() == 0
    while killed < 20:
        method = list(METHODS)[tried % 3]
        tried += 1
        run, in_save = tmp_path / f"{method}-{tried}", 0
        for i in range(7):
            if not live_and_die(start, asked(method, run, every=1), run, rng, ("save", "round", "start")[i % 3]):
                break
            killed += 1
            in_save += bool(unfinished(run))
            fact("SIGKILLs of whole programs survived")
        last = start(asked(method, run, every=1))
        assert last.wait() == 0, last.said()
        check(run, tmp_path / method)
        sys.stderr.write(f"{method}: {killed} kills so far, {in_save} in saves of this run\n")
