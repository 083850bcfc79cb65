"""Runs that the tests of this folder share, and a way to the workers."""

from __future__ import annotations

import functools
import time
from typing import Any

import numpy as np

import fedmime as fm
from engine.setting import KINDS, PROBLEM, close, population
from fedmime.engine.backends.ray import crew

SIZES, ROUNDS = (5, 9, 14, 3, 7, 8, 2, 11), 3
SPECIFICATION = fm.backends.ray(workers=2, deadline=300)
MIME = fm.algorithms.mime(fm.optimizers.momentum(0.9), 0.05)
OWN = {"workers", "workers_lost", "bytes_broadcast", "bytes_gathered"}  # figures that only this back end has


def run(algorithm: Any, backend: Any, problem: Any = PROBLEM, **options: Any) -> Any:
    given = {"seed": 1, "evaluate_every": ROUNDS, "backend": backend, "rounds": ROUNDS} | options
    return fm.simulate(algorithm, problem, population(SIZES), cohort_size=6, batch_size=4, **given)


@functools.cache
def expected(kind: str) -> Any:
    return run(KINDS[kind], "local")


def agree(ours: Any, theirs: Any) -> None:
    close(ours.state.server, theirs.state.server)
    assert ours.history.keys() - theirs.history.keys() == OWN
    for name in theirs.history:
        np.testing.assert_allclose(ours.history[name], theirs.history[name], 1e-10, err_msg=name)


def workers(specification: Any = SPECIFICATION) -> crew.Crew:
    return crew._crews[specification._options]


def all_ready() -> None:
    until = time.monotonic() + 200
    while not all(seat.ready for seat in workers().seats):
        workers().admit(0.5)
        assert time.monotonic() < until


@functools.cache
def unbroken(kind: str, rounds: int = ROUNDS, steps: int | None = None) -> Any:
    all_ready()
    return run(KINDS[kind], SPECIFICATION, rounds=rounds, steps=steps)
