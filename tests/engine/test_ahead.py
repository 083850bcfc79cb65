"""Rounds that begin before the one before them has ended: the same numbers, and never past what somebody needs."""

import math

import jax
import numpy as np
import pytest

import fedmime as fm
from engine.setting import PROBLEM, a, model, o, population
from fedmime import native
from fedmime.engine import ahead, scratch
from fedmime.errors import Stopped

CLIENTS = population([4, 7, 1, 9, 5, 6, 0, 3])
ALGORITHMS = {
    "fedavg": a.fedavg(0.1),
    "mime": a.mime(o.momentum(), 0.1),
    "mime_mvr": a.mime_mvr(0.1, 0.9),
    "scaffold": a.scaffold(0.1),
}


@pytest.fixture
def begun(monkeypatch) -> list[bool]:
    """Whether each round began early, before the one before it had ended; all may."""
    early: list[bool] = []
    under_way: list[object] = []

    def begin(*args):
        early.append(bool(under_way))
        under_way.append(real_begin(*args))
        return under_way[-1]

    def end(underway):
        under_way.remove(underway)
        return real_end(underway)

    real_begin, real_end = ahead.begin, ahead.end
    monkeypatch.setattr(ahead, "begin", begin)
    monkeypatch.setattr(ahead, "end", end)
    monkeypatch.setattr(ahead, "BRISK", math.inf)
    return early


def _run(algorithm=ALGORITHMS["fedavg"], rounds=7, **options) -> fm.Run:
    return fm.simulate(algorithm, PROBLEM, CLIENTS, rounds, 4, 4, initial=model(), **options)


def _bits(run: fm.Run) -> list[bytes]:
    figures = [np.asarray(column).tobytes() for column in run.history.values()]
    return [*figures, *(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(run.state.server))]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_numbers_are_those_of_rounds_that_wait(name, begun, monkeypatch) -> None:
    early = _bits(_run(ALGORITHMS[name]))
    if name == "scaffold":  # what clients keep of a round has to be there for the next one
        assert not any(begun)
    else:
        assert begun == [False, False, True, True, True, True, True]
    begun.clear()
    monkeypatch.setattr(ahead, "BRISK", -1.0)
    assert _bits(_run(ALGORITHMS[name])) == early
    assert not any(begun)


@pytest.mark.skipif(not native.usable(), reason="without kernels nothing is lent")
def test_tables_are_handed_on(begun, monkeypatch) -> None:
    """A Mime round under way hands on what it was lent: two rounds never hold two sets."""
    made = []

    def new(kind):
        made.append(len(begun))
        return original(kind)

    original = scratch.Kind.new
    monkeypatch.setattr(scratch.Kind, "new", new)
    scratch.release()
    problem = fm.models.logistic(input_shape=(8, 8, 1), classes=10)
    digits = fm.data.digits(clients=20, seed=0)
    fm.simulate(ALGORITHMS["mime"], problem, digits, 6, 4, evaluate_every=100)
    assert begun == [False, False, True, True, True, True]
    assert made == [1]


def test_no_round_begins_early_after_one_that_is_evaluated_or_saved(begun, tmp_path) -> None:
    digits = fm.data.digits(clients=20, seed=0)
    problem = fm.models.logistic(input_shape=(8, 8, 1), classes=10)
    run = fm.simulate(
        ALGORITHMS["fedavg"], problem, digits, 9, 4, evaluate_every=4, run_dir=tmp_path, saving=fm.Saving(every=6)
    )
    assert begun == [False, False, True, True, False, True, False, True, False]
    assert np.isfinite(run.history["test_accuracy"][[3, 7, 8]]).all()


def test_a_run_stops_after_the_round_in_which_it_is_asked_to(begun, tmp_path) -> None:
    calls = []

    def stop() -> int | None:
        calls.append(None)
        return 15 if len(calls) == 5 else None

    with pytest.raises(Stopped, match="after round 5"):
        _run(run_dir=tmp_path, stop=stop)
    assert sum(begun) == 3
    assert _bits(_run(run_dir=tmp_path)) == _bits(_run())


def test_what_goes_wrong_with_a_layout_belongs_to_its_round() -> None:
    def make(t: int):
        if t == 2:
            raise ValueError("no such client")
        return t

    layouts = ahead.Layouts(make, 0, 3)
    assert layouts.prepare()
    assert [layouts.take(), layouts.take()] == [0, 1]
    assert not layouts.prepare()
    with pytest.raises(ValueError, match="no such client"):
        layouts.take()


def test_what_goes_wrong_with_a_round_to_come_does_not_lose_the_one_before(begun, monkeypatch) -> None:
    known, seen = ahead.begin, []

    def begin(ready, state):
        if ready.round == 4:
            raise RuntimeError("out of memory")
        return known(ready, state)

    monkeypatch.setattr(ahead, "begin", begin)
    with pytest.raises(RuntimeError, match="out of memory"):
        _run(on_round=lambda info, _: seen.append(info.round))
    assert seen == [0, 1, 2, 3]
