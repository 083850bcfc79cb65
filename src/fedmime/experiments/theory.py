"""`reproduce theory`: whether the theorems hold, and how much faster MimeMVR is as clients grow alike."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax

from fedmime.errors import ConfigError
from fedmime.experiments import theory_figures
from fedmime.experiments.theory_deviation import BASES, PROBLEMS, deviation
from fedmime.experiments.theory_rounds import COHORT, EPS, METHODS, Effort, direction_errors, tuned
from fedmime.experiments.theory_slopes import factors, slopes

Progress = Callable[[int, int], None]
Job = tuple[str, Callable[[], Any]]  # which part of the results it adds to


class Scale(NamedTuple):
    """What is run at one scale."""

    bases: tuple[str, ...]
    problems: tuple[str, ...]
    points: int
    ratios: tuple[float, ...]  # δ/L
    methods: tuple[str, ...]
    steps: tuple[int, ...]  # K against L/δ at the middle ratio
    middle: float
    cohorts: tuple[int, ...]
    watched: int  # rounds behind the error of a client's direction
    effort: Effort


def _rates(number: int) -> tuple[float, ...]:
    return tuple(1.8 * 2.0**-j for j in range(number))


_MVR = ("MimeMVR", "MimeLiteMVR")
SCALES = {
    "smoke": Scale(
        bases=("sgd",),
        problems=("quadratic",),
        points=4,
        ratios=(1.0, 0.1),
        methods=("MimeMVR", "Server-only MVR"),
        steps=(1, 10),
        middle=0.1,
        cohorts=(COHORT,),
        watched=40,
        effort=Effort(rates=(1.8, 0.4), a=(0.1,), seeds=1, most=2000),
    ),
    "small": Scale(
        bases=tuple(BASES),
        problems=tuple(PROBLEMS),
        points=10,
        ratios=(1.0, 0.3, 0.1, 0.03, 0.01),
        methods=tuple(METHODS),
        steps=(1, 3, 10, 30, 100, 300),
        middle=0.03,
        cohorts=(1, 2, 4, 8, 16, 32),
        watched=200,
        effort=Effort(rates=_rates(9), a=(0.5, 0.1, 0.02), seeds=4, most=6000),
    ),
    "full": Scale(
        bases=tuple(BASES),
        problems=tuple(PROBLEMS),
        points=20,
        ratios=(1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01),
        methods=tuple(METHODS),
        steps=(1, 2, 5, 10, 20, 50, 100, 200, 500),
        middle=0.02,
        cohorts=(1, 2, 4, 8, 16, 32, 64),
        watched=400,
        effort=Effort(rates=_rates(12), a=(0.5, 0.2, 0.1, 0.05, 0.02, 0.01), seeds=8, most=20000),
    ),
}


def run(scale: str, out: Path, progress: Progress | None = None) -> dict[str, Any]:
    """Compute everything in float64 and return plain data; `out` is left to `draw` and the caller."""
    del out
    if scale not in SCALES:
        raise ConfigError(f"theory: scale must be one of {', '.join(map(repr, SCALES))}, got {scale!r}")
    with jax.enable_x64(True):
        return _run(scale, SCALES[scale], progress)


def _run(name: str, scale: Scale, progress: Progress | None) -> dict[str, Any]:
    jobs = list(_jobs(scale))
    found: dict[str, list[Any]] = {}
    for done, (kind, job) in enumerate(jobs, 1):
        result = job()
        found.setdefault(kind, []).extend(result if isinstance(result, list) else [result])
        if progress is not None:
            progress(done, len(jobs))
    similarity = {problem: found[problem] for problem in scale.problems}
    settings: dict[str, Any] = {"scale": name, "eps": EPS, "cohort_size": COHORT, "middle": scale.middle}
    parts = {kind: found[kind] for kind in ("deviation", "steps", "cohort", "errors")}
    data = settings | parts | {"similarity": similarity}
    return data | {"factors": factors(similarity), "slopes": slopes(data)}


def _jobs(scale: Scale) -> Iterator[Job]:
    """Everything there is to compute, in order: parts (a) to (d) of the comparison with the theory."""
    for problem in scale.problems:
        for method in ("Mime", "MimeLite"):
            for base in scale.bases:
                yield "deviation", functools.partial(deviation, problem, method, base, scale.points)
    run_tuned = functools.partial(tuned, effort=scale.effort)
    for problem in scale.problems:
        for method in scale.methods:
            for ratio in scale.ratios:
                yield problem, functools.partial(run_tuned, method, ratio, PROBLEMS[problem], _steps(ratio), COHORT)
    rough = functools.partial(run_tuned, delta=scale.middle, bend=0.0, aligned=False)
    local = [method for method in scale.methods if method in _MVR]
    for method in local:
        for K in scale.steps:
            yield "steps", functools.partial(rough, method, K=K, S=COHORT)
    for method in local:
        for S in scale.cohorts:
            yield "cohort", functools.partial(rough, method, K=_steps(scale.middle), S=S, G2=0.02, sigma2=0.2)
    yield "errors", functools.partial(direction_errors, scale.cohorts, scale.watched, scale.effort.seeds)


def _steps(ratio: float) -> int:
    """K = L/δ."""
    return math.ceil(1 / ratio - 1e-9)


def draw(data: dict[str, Any], out: Path) -> list[Path]:
    """The figures, as PNG and PDF."""
    return theory_figures.draw(data, out)
