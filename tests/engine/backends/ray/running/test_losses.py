"""Workers that die, hang, join, leave, or are not who they should be."""

from __future__ import annotations

import functools
import itertools
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedmime as fm
from engine.backends.ray.running.setting import MIME, all_ready, run, unbroken, workers
from engine.setting import KINDS, same
from fedmime.engine.backends.ray import crew, dispatch, handshake
from fedmime.engine.backends.ray.seat import Seat
from fedmime.engine.backends.specification import Ray

DEADLINE = 3.0  # seconds
MOST_SECONDS = 5.0  # of a phase in which a worker is lost, with what others do again


def _timed(recoveries: list[float]) -> Any:
    """`dispatch.collect`, which notes the seconds of each call that lost a worker while another one could go on."""
    collect = dispatch.collect

    def timed(crew: crew.Crew, orders: Any, placed: Any) -> Any:
        able, lost, start = crew.ready, len(crew.lost), time.monotonic()
        found = collect(crew, orders, placed)
        if len(crew.lost) > lost and any(seat.alive for seat in able):
            recoveries.append(time.monotonic() - start)
        return found

    return timed


class _Killing:
    """Kills workers right before or after they were given the parts of certain calls, counted from the start.

    Attributes:
        recoveries: what the calls took, in seconds, that lost a worker while another one could go on.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: dict[int, list[int]], when: str, by: int) -> None:
        self.calls, self.recoveries = 0, []
        collect = _timed(self.recoveries)

        def collect_and_kill(crew: crew.Crew, orders: Any, placed: Any) -> Any:
            victims = [crew.seats[i].place.pid for i in at.get(self.calls, [])]
            self.calls += 1
            if when == "before":
                _kill(victims, by)
            sent = []

            def last(send: Any, seat: Any) -> Any:
                ref = send(seat)
                sent.append(ref)
                if when == "inside" and len(sent) == len(orders):
                    _kill(victims, by)
                return ref

            orders = {n: order._replace(send=functools.partial(last, order.send)) for n, order in orders.items()}
            return collect(crew, orders, placed)

        monkeypatch.setattr(dispatch, "collect", collect_and_kill)


def _kill(victims: list[int], by: int) -> None:
    for pid in victims:
        os.kill(pid, by)


@pytest.mark.parametrize(
    ("kind", "at", "when", "directory"),
    [  # calls of Mime + Adam: one that primes, then two in every round; of SCAFFOLD, one in every round
        ("mime-adam", {1: [0], 2: [1]}, "before", None),  # before phase 1; then before phase 2, the only one left
        ("mime-adam", {3: [0]}, "inside", None),  # phase 1; if it was faster than its killer, phase 2 finds it dead
        pytest.param("mime-adam", {4: [1]}, "before", None, marks=pytest.mark.slow),  # between phases
        pytest.param("scaffold", {1: [0, 1]}, "inside", None, marks=pytest.mark.slow),
        ("scaffold", {1: [0, 1]}, "inside", "run"),  # everybody, while they write what clients keep
    ],
)
def test_dead_workers_change_nothing(
    ray: Ray,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    fact: Any,
    kind: str,
    at: dict[int, list[int]],
    when: str,
    directory: str | None,
) -> None:
    whole = unbroken(kind)
    all_ready()
    seats = list(workers().seats)
    with monkeypatch.context() as patch:
        killing = _Killing(patch, at, when, signal.SIGKILL)
        broken = run(KINDS[kind], ray, run_dir=None if directory is None else tmp_path / directory)
    assert same(broken.state.server, whole.state.server)
    if broken.state.memory is not None:
        assert same(broken.state.memory.read(range(8)), whole.state.memory.read(range(8)))
    assert workers().seats != seats
    assert broken.history["workers_lost"].sum() == sum(map(len, at.values()))
    assert bool(killing.recoveries) == (kind == "mime-adam")  # otherwise everybody was killed at once
    for seconds in killing.recoveries:
        fact("seconds of a phase that a worker killed by SIGKILL leaves to another one", seconds)
        assert seconds < MOST_SECONDS
    all_ready()  # those that were killed have been replaced
    fact("rounds with workers killed by SIGKILL, same bits")


def test_a_hung_worker_is_replaced_at_the_deadline(ray: Ray, monkeypatch: pytest.MonkeyPatch, fact: Any) -> None:
    whole = unbroken("scaffold")
    all_ready()
    seat = workers().seats[0]
    with monkeypatch.context() as patch:
        patch.setattr(workers(), "_options", workers()._options._replace(deadline=DEADLINE))
        killing = _Killing(patch, {1: [0]}, "inside", signal.SIGSTOP)
        ended = run(KINDS["scaffold"], ray)
    assert same(ended.state, whole.state)
    (seconds,) = killing.recoveries
    fact("seconds of a phase with a hung worker, beyond the deadline", seconds - DEADLINE)
    assert DEADLINE <= seconds < DEADLINE + MOST_SECONDS
    assert ended.history["workers_lost"].sum() == 1
    assert not seat.alive
    all_ready()


def test_workers_leave_and_join_between_rounds(ray: Ray) -> None:
    import ray as library

    whole = unbroken("fedavg", 8)
    all_ready()

    def on_round(info: fm.Info, measured: Any) -> None:
        if info.round == 1:
            library.kill(workers().seats[1].actor)
        if info.round == 5:
            all_ready()

    ended = run(KINDS["fedavg"], ray, rounds=8, on_round=on_round)
    assert same(ended.state, whole.state)
    assert ended.history["workers"].tolist()[:3] == [2, 2, 1]
    assert ended.history["workers"][-1] == 2
    assert ended.history["workers_lost"].tolist() == [0, 0, 1, 0, 0, 0, 0, 0]


def test_a_slow_worker_gets_fewer_parts(ray: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a worker computes follows its pace; what comes out does not."""
    all_ready()
    finer = fm.backends.ray(workers=2, parts=4)
    whole = run(MIME, finer)
    slow, fast = workers().seats
    dealt, collect = [], dispatch.collect
    monkeypatch.setattr(Seat, "pace", property(lambda seat: 3.0 if seat is slow else 1.0))
    monkeypatch.setattr(
        dispatch, "collect", lambda crew, orders, placed: dealt.append(placed) or collect(crew, orders, placed)
    )
    assert same(run(MIME, finer).state, whole.state)
    for placed in dealt:
        parts = list(placed.values())
        assert parts.count(slow) < parts.count(fast)


@pytest.mark.parametrize(("name", "value"), [("jax", "0.0.1"), ("fedmime", "0.0.1"), ("float64", False)])
def test_other_versions_are_refused(ray: Ray, monkeypatch: pytest.MonkeyPatch, name: str, value: Any) -> None:
    monkeypatch.setattr(workers(), "_facts", workers()._facts._replace(**{name: value}))
    with pytest.raises(fm.ConfigError, match=f"has {name} .* the driver has {value!r}"):
        run(KINDS["fedavg"], ray)


@pytest.mark.parametrize(("name", "value"), [("problem", "other"), ("data", "0" * 64), ("configuration", "other")])
def test_another_run_is_refused(ray: Ray, monkeypatch: pytest.MonkeyPatch, name: str, value: Any) -> None:
    of = handshake.Subject.of
    monkeypatch.setattr(handshake.Subject, "of", lambda *given: of(*given)._replace(**{name: value}))
    with pytest.raises(fm.ConfigError, match=f"ray: worker . .* has {name} .*, the driver has {value!r}"):
        run(KINDS["fedavg"], ray)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["mime-adam", "scaffold"])
def test_twenty_kills_at_random_times(
    ray: Ray, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fact: Any, kind: str
) -> None:
    """Forty rounds; in every second one a worker, drawn at random, is killed while it computes, or right after.

    Mime is hit in both of its phases, ten times each. SCAFFOLD has a run directory, in which its workers write.
    """
    whole = unbroken(kind, 40, 3000)  # so many local steps take 50 ms
    rng, calls, recoveries, met = np.random.default_rng(7), itertools.count(), [], []
    collect = _timed(recoveries)
    if kind == "mime-adam":  # a call that primes, then two in every round
        chosen = set((np.arange(1, 79, 4)[:20] + rng.permutation([0, 1] * 10)).tolist())
    else:
        chosen = set(range(0, 40, 2))

    def collect_and_kill(crew: crew.Crew, orders: Any, placed: Any) -> Any:
        killer, lost, call = None, len(crew.lost), next(calls)
        if call in chosen:
            all_ready()
            pid = crew.seats[rng.integers(2)].place.pid
            killer = threading.Timer(rng.uniform(0, 0.05), os.kill, (pid, signal.SIGKILL))
            killer.start()
        found = collect(crew, orders, placed)
        if len(crew.lost) > lost:
            met.append(call in chosen)  # otherwise it was killed after its answer, and the next call notices
        if killer is not None:
            killer.join()
        return found

    monkeypatch.setattr(dispatch, "collect", collect_and_kill)
    run_dir = tmp_path / "run" if kind == "scaffold" else None
    broken = run(KINDS[kind], ray, rounds=40, steps=3000, run_dir=run_dir)
    assert same(broken.state.server, whole.state.server)
    if broken.state.memory is not None:
        assert same(broken.state.memory.read(range(8)), whole.state.memory.read(range(8)))
    assert len(chosen) == 20
    assert len(met) == len(recoveries) >= 19  # the last one may come after everything
    assert max(recoveries) < MOST_SECONDS, recoveries
    for seconds in recoveries:
        fact(f"seconds of a phase of {kind} that notices a worker killed by SIGKILL", seconds)
    fact(f"kills of {kind} that met a worker at work", sum(met))
    monkeypatch.undo()
    all_ready()
