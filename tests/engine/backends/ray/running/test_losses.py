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

MOST_SECONDS = 5.0  # of a phase in which a worker is lost, with what others do again


class _Killing:
    """Kills workers right before or after they were given the parts of certain calls, counted from the start."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: dict[int, list[int]], when: str, by: int) -> None:
        self.calls, collect = 0, dispatch.collect

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
        _Killing(patch, at, when, signal.SIGKILL)
        broken = run(KINDS[kind], ray, run_dir=None if directory is None else tmp_path / directory)
    assert same(broken.state.server, whole.state.server)
    if broken.state.memory is not None:
        assert same(broken.state.memory.read(range(8)), whole.state.memory.read(range(8)))
    assert workers().seats != seats
    assert broken.history["workers_lost"].sum() == sum(map(len, at.values()))
    all_ready()  # those that were killed have been replaced
    fact("rounds with workers killed by SIGKILL, same bits")


def test_a_hung_worker_is_replaced_at_the_deadline(ray: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = unbroken("scaffold")
    all_ready()
    seat = workers().seats[0]
    with monkeypatch.context() as patch:
        patch.setattr(workers(), "_options", workers()._options._replace(deadline=3.0))
        _Killing(patch, {1: [0]}, "inside", signal.SIGSTOP)
        assert same(run(KINDS["scaffold"], ray).state, whole.state)
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
@pytest.mark.parametrize("kind", ["mime-adam", "scaffold"])
def test_ten_kills_at_random_times(ray: Ray, monkeypatch: pytest.MonkeyPatch, fact: Any, kind: str) -> None:
    """Forty rounds; in ten phases, drawn at random, a worker is killed while it computes, or right after."""
    whole = unbroken(kind, 40, 3000)  # so many local steps take 50 ms
    rng, collect, calls, killed = np.random.default_rng(7), dispatch.collect, itertools.count(), []
    phases = 79 if kind == "mime-adam" else 40
    chosen = set(rng.choice(np.arange(0, phases, 2), 10, replace=False).tolist())  # the next one notices, if not this

    def collect_and_kill(crew: crew.Crew, orders: Any, placed: Any) -> Any:
        killer, lost, call = None, len(crew.lost), next(calls)
        if call in chosen:
            all_ready()
            pid = crew.seats[rng.integers(2)].place.pid
            killer = threading.Timer(rng.uniform(0, 0.05), os.kill, (pid, signal.SIGKILL))
            killer.start()
        start = time.monotonic()
        found = collect(crew, orders, placed)
        if len(crew.lost) > lost:
            seconds = time.monotonic() - start
            fact(f"seconds of a phase of {kind} that notices a worker killed by SIGKILL", seconds)
            assert seconds < MOST_SECONDS
            killed.append(call in chosen)
        if killer is not None:
            killer.join()
        return found

    monkeypatch.setattr(dispatch, "collect", collect_and_kill)
    broken = run(KINDS[kind], ray, rounds=40, steps=3000)
    assert same(broken.state, whole.state)
    assert len(killed) >= 9  # the last one may come after everything
    fact(f"kills of {kind} that met a worker at work", sum(killed))
    monkeypatch.undo()
    all_ready()
