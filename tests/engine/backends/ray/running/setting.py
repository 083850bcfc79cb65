"""Runs that the tests of this folder share, and a way to the workers."""

from __future__ import annotations

import functools
import time
from typing import Any

import numpy as np

import fedmime as fm
from engine.backends.ray.losses import NOISY
from engine.setting import EVERY, PROBLEM, close, population
from fedmime.engine.backends.ray import crew

SIZES, ROUNDS = (5, 9, 14, 3, 7, 8, 2, 11), 3
SPECIFICATION = fm.backends.ray(workers=2)  # as the command line has them, whose runs share the workers
MIME = fm.algorithms.mime(fm.optimizers.momentum(0.9), 0.05)
MODES: dict[str, dict[str, Any]] = {
    "plain": {},
    "drop-out": {"participation": fm.Participation(drop_out=0.4, over_selection=1.3, minimum=0.1)},
    "uniform weights": {"weights": "uniform"},
    "chain": {"aggregation": fm.aggregation.chain(fm.aggregation.random_k(0.5), fm.aggregation.quantize(bits=8))},
    "random loss": {"problem": NOISY},
}
OWN = {"workers", "workers_lost", "bytes_broadcast", "bytes_gathered"}  # telemetry that only this back end has


def run(algorithm: Any, backend: Any, problem: Any = PROBLEM, **options: Any) -> Any:
    given = {"seed": 1, "evaluate_every": ROUNDS, "backend": backend, "rounds": ROUNDS} | options
    return fm.simulate(algorithm, problem, population(SIZES), cohort_size=6, batch_size=4, **given)


@functools.cache
def expected(kind: str, mode: str = "plain") -> Any:
    return run(EVERY[kind], "local", **MODES[mode])


def agree(ours: Any, theirs: Any) -> None:
    close(ours.state.server, theirs.state.server)
    assert ours.history.keys() - theirs.history.keys() == OWN
    for name in theirs.history:
        np.testing.assert_allclose(ours.history[name], theirs.history[name], 1e-10, err_msg=name)


def workers(specification: Any = SPECIFICATION) -> crew.Crew:
    return crew._crews[specification.options]


def all_ready() -> None:
    until = time.monotonic() + 200
    while not all(seat.ready for seat in workers().seats):
        workers().admit(0.5)
        assert time.monotonic() < until


@functools.cache
def unbroken(kind: str, rounds: int = ROUNDS, steps: int | None = None) -> Any:
    all_ready()
    return run(EVERY[kind], SPECIFICATION, rounds=rounds, steps=steps)
