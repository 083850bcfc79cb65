"""The directory of a run: exact resume of every algorithm, and the files that tell about it."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import yaml

import fedmime as fm
from algorithms.cases import CASES
from engine.setting import KINDS, PROBLEM, a, model, o, population, same
from fedmime.runs.directory import RunDirectory
from fedmime.runs.run import read_model
from marking import fast

ROUNDS, STOPS = 5, 3
CLIENTS = population([13, 14, 15, 16, 13, 14, 15, 16])


def _simulate(
    algorithm: Any, run: Path | None, stops: int | None = None, rounds: int = ROUNDS, **options: Any
) -> fm.Run:
    """A run, stopped by a signal after so many rounds."""
    seen: Iterator[int] = iter(range(1, 10**9))
    options = {"saving": fm.Saving(every=2), "drift": True, "evaluate_every": 2} | options
    stop = None if stops is None else (lambda: signal.SIGTERM if next(seen) == stops else None)
    return fm.simulate(algorithm, PROBLEM, CLIENTS, rounds, 4, 4, seed=3, run_dir=run, stop=stop, **options)


def _exact(algorithm: Any, folder: Path, **options: Any) -> None:
    """Assert that a run broken off in the middle ends as an unbroken one, with or without a directory."""
    unbroken = _simulate(algorithm, folder / "unbroken", **options)
    with pytest.raises(fm.Stopped) as caught:
        _simulate(algorithm, folder / "broken", STOPS, **options)
    assert caught.value.exit_code == 128 + signal.SIGTERM
    resumed = _simulate(algorithm, folder / "broken", **options)
    assert same(resumed.state.server, unbroken.state.server)
    assert resumed.state.round == unbroken.state.round == ROUNDS
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (folder / "broken" / name).read_bytes() == (folder / "unbroken" / name).read_bytes()
    assert same(resumed.history, unbroken.history)
    if unbroken.state.memory is not None:
        everyone = list(range(len(CLIENTS)))
        assert same(resumed.state.memory.read(everyone), unbroken.state.memory.read(everyone))


@pytest.mark.parametrize("kind", fast(KINDS, {"fedavg-adam", "fedavg-client", "fedprox", "fednova", "fedexp"}))
def test_broken_runs_end_like_unbroken_ones(kind: str, tmp_path: Path) -> None:
    _exact(KINDS[kind], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_broken_runs_of_every_case_end_like_unbroken_ones(case, tmp_path: Path) -> None:
    _exact(case.algorithm, tmp_path)


def test_a_directory_changes_no_number(tmp_path: Path) -> None:
    runs = [_simulate(KINDS["scaffold"], run) for run in (None, tmp_path)]
    assert same(runs[0].state.server, runs[1].state.server)
    assert same(runs[0].history, runs[1].history)


def test_a_run_that_goes_on_elsewhere_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """On another number of devices sums are rounded differently; whoever compares bits must know."""
    with pytest.raises(fm.Stopped):
        _simulate(a.fedavg(0.1), tmp_path, STOPS, devices=2)
    _simulate(a.fedavg(0.1), tmp_path, STOPS + 9, devices=2)
    told = lambda: [message for message in caplog.messages if "goes on with" in message]
    assert not told()
    _simulate(a.fedavg(0.1), tmp_path, devices=1)
    (words,) = told()
    assert "was computed on 2 devices and goes on with 1 device: sums are rounded differently" in words
    assert "2 devices and goes on with 1 device" in (tmp_path / "log.txt").read_text()


def _structures() -> dict[str, Any]:
    """One algorithm for each structure that a server state can have."""
    server = lambda case: jax.eval_shape(lambda x: case.algorithm.init(x).server, model())
    return {str(jax.tree.structure(server(case))): case.algorithm for case in CASES}


def test_states_of_every_case_come_back_bit_for_bit(tmp_path: Path) -> None:
    rng, found = np.random.default_rng(0), _structures()
    assert len(found) > 10
    for i, algorithm in enumerate(found.values()):
        state = algorithm.init(model())
        numbers = jax.tree.map(lambda leaf: (np.asarray(leaf) + rng.normal()).astype(leaf.dtype), state.server)
        with RunDirectory(tmp_path / str(i), keep=1) as directory:
            directory.claim({}, {}, "1 device", fresh=False, rounds=1)
            directory.resume(state, ())
            directory.row({"round": 0, "loss": 1.0})
            directory.save(fm.State(1, numbers))
            again = directory.resume(state, ())
        assert again.round == 1
        assert same(again.server, numbers)
        kinds = [[leaf.dtype for leaf in jax.tree.leaves(server)] for server in (again.server, state.server)]
        assert kinds[0] == kinds[1]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "one"
    _simulate(a.mime(o.adam(), 0.1), path)
    return path


@pytest.mark.parametrize("dry_run", [False, True])
def test_fewer_rounds_than_are_finished_are_refused(dry_run: bool, run: Path) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    done = json.loads((run / "status.json").read_text())["round"]
    with pytest.raises(fm.ConfigError, match=f"^rounds: .* has finished {done} rounds, .*, got {done - 1}$"):
        _simulate(a.mime(o.adam(), 0.1), run, rounds=done - 1, dry_run=dry_run)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_a_run_says_what_it_was(run: Path) -> None:
    status, data, env = (json.loads((run / f"{name}.json").read_text()) for name in ("status", "data", "env"))
    assert status | {"seconds": 0} == {"state": "done", "round": 5, "rounds": 5, "reason": None, "seconds": 0}
    assert (data["clients"], data["examples"], data["test_examples"]) == (8, 116, 11)
    assert len(data["sha256"]) == 64
    assert {"fedmime", "jax", "numpy", "python", "platform", "devices", "git", "time"} <= set(env)
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["algorithm"]["kind"] == "Mime"
    assert config["schedule"]["cohort_size"] == 4
    assert (run / "command.txt").read_text()
    assert list((run / "tb").glob("events.out.tfevents.*"))


def test_a_run_is_loaded(run: Path) -> None:
    loaded = fm.Run.load(run)
    assert loaded.history["round"].tolist() == list(range(ROUNDS))
    assert same(read_model(run / "model.safetensors"), loaded.params)
    assert same(_simulate(a.mime(o.adam(), 0.1), None).params, loaded.params)


def test_a_finished_run_is_not_run_again(run: Path) -> None:
    called = []
    again = _simulate(a.mime(o.adam(), 0.1), run, on_round=lambda *_: called.append(1))
    assert not called
    assert same(again.params, fm.Run.load(run).params)
    assert again.state.round == ROUNDS
    assert (run / "metrics.jsonl").read_bytes().count(b"\n") == ROUNDS


def test_a_fresh_start_removes_what_was_there(tmp_path: Path) -> None:
    _simulate(a.fedavg(0.1), tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(fm.CheckpointError, match="another configuration"):
        _simulate(a.fedavg(0.2), tmp_path)
    _simulate(a.fedavg(0.2), tmp_path, saving=fm.Saving(every=2, fresh=True))
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert (tmp_path / "metrics.jsonl").read_bytes().count(b"\n") == ROUNDS


@pytest.mark.parametrize("number", ["every", "keep"])
def test_saving_is_checked(number: str) -> None:
    with pytest.raises(fm.ConfigError, match=f"saving: {number} must be a whole number of at least 1, got 0"):
        fm.Saving(**{number: 0})
