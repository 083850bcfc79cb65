"""`fedmime diagnose`: measure a task's constants, at its start or along a short run, and say what they advise."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from fedmime.data import Population
from fedmime.errors import ConfigError
from fedmime.experiments import tasks
from fedmime.experiments.task import Task
from fedmime.models import Problem
from fedmime.theory import Constants, Row, constants, favoured, mvr_parameters, rounds_table, suggested_steps
from fedmime.validation import LARGEST_SEED, POSITIVE, count, real

Progress = Callable[[str, int, int], None]
_POINTS = 5  # at which constants are measured along a run
_LIGHT = 100  # examples a full gradient takes at once: dense layers take more, images and sequences fewer
_SHARE = 0.1  # of the first ‖∇f‖²: the ε asked for by default


class Effort(NamedTuple):
    """How many clients and examples are looked at."""

    clients: int
    curvature_clients: int
    curvature_examples: int | None


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """What was found, as data; `diagnose_words` says it."""

    task: str
    clients: int  # N
    cohort: int  # S
    batch_size: int
    epochs: int | None  # local passes over a client's data; None where steps were given
    steps: float  # local steps of an average client
    K: int  # the same as a whole number, at which the rates are evaluated
    seed: int
    eps: float
    F: float  # a bound of f(x_0) - f*
    rounds: int  # T
    points: tuple[tuple[int, Constants], ...]  # round and constants there
    worst: Constants  # the largest of each along the run
    suggested_steps: int
    table: tuple[Row, ...]
    mvr: tuple[float, float]  # η and a of MimeMVR
    lite_mvr: tuple[float, float]
    curvature_examples: int | None = None  # of a client at most, where not all were looked at

    @property
    def favoured(self) -> Row:
        """The method with the fewest rounds."""
        return favoured(list(self.table))

    @property
    def server_only(self) -> Row:
        """The best method without local steps."""
        return min((row for row in self.table if row.method.startswith("Server-only")), key=lambda row: row.rounds)

    @property
    def local(self) -> Row:
        """The best method with local steps, among those that can be run on clients seen once."""
        return favoured([row for row in self.table if not row.method.startswith("Server-only")])

    @property
    def factor(self) -> float:
        """How many times fewer rounds the best method with local steps takes than the best one without."""
        return self.server_only.rounds / self.local.rounds


def diagnose(
    task: str,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    seed: int = 0,
    clients: int | None = None,
    curvature_clients: int | None = None,
    curvature_examples: int | None = None,
    eps: float | None = None,
    cohort: int | None = None,
    epochs: int | None = None,
    steps: int | None = None,
    along: int = 0,
    progress: Progress | None = None,
) -> Diagnosis:
    """Measure and advise.

    Args:
        clients: drawn for the gradients, and
        curvature_clients: for the Hessians, with at most
        curvature_examples: of each; by default 100, 20 and all, for convolutions and LSTMs 20, 5 and 40.
        eps: the ‖∇f‖² to reach; by default a tenth of that at the start.
        cohort: S; by default the task's.
        epochs: local passes over a client's data, by default the task's; or
        steps: local steps, instead of epochs. The rates are evaluated at these.
        along: rounds of FedAvg at the task's rate, along which the constants are measured again.
    """
    known = tasks.get(task)
    if epochs is not None and steps is not None:
        raise ConfigError(f"diagnose: give epochs or steps, not both (epochs={epochs}, steps={steps})")
    for name, value in (("epochs", epochs), ("steps", steps)):
        if value is not None:
            count("diagnose", name, value, least=1)
    if steps is None:
        epochs = known.epochs if epochs is None else epochs
    count("diagnose", "along", along)
    count("diagnose", "seed", seed, most=LARGEST_SEED)
    S = known.cohort if cohort is None else count("diagnose", "cohort", cohort, least=1)
    if eps is not None:
        real("diagnose", "eps", eps, POSITIVE)
    problem, population = tasks.problem(task), tasks.population(task, data_dir)
    light, costly = Effort(100, 20, None), Effort(20, 5, 40)
    usual = light if problem.chunk >= _LIGHT else costly
    effort = Effort(
        usual.clients if clients is None else clients,
        usual.curvature_clients if curvature_clients is None else curvature_clients,
        usual.curvature_examples if curvature_examples is None else curvature_examples,
    )
    points = tuple(_points(known, problem, population, S, epochs, steps, along, effort, seed, progress))
    first = points[0][1]
    wanted = _SHARE * first.gradient_norm2 if eps is None else eps
    if not wanted > 0:
        raise ConfigError(f"diagnose: eps must be given, as ‖∇f‖² of {known.name!r} is not known to differ from zero")
    found = advise(known, population.sizes, points, wanted, S, seed, epochs, steps)
    return dataclasses.replace(found, curvature_examples=effort.curvature_examples)


def advise(
    known: Task,
    sizes: np.ndarray,
    points: Sequence[tuple[int, Constants]],
    eps: float,
    S: int,
    seed: int,
    epochs: int | None,
    steps: int | None,
) -> Diagnosis:
    """What measured constants say about a task that is run with so many local epochs, or steps."""
    worst = _worst([found for _, found in points])
    there = sizes[sizes > 0]
    taken = float(steps or (epochs or 1) * np.mean(np.ceil(there / known.batch_size)))
    K, F = max(1, round(taken)), points[0][1].loss
    return Diagnosis(
        task=known.name,
        clients=int(there.size),
        cohort=S,
        batch_size=known.batch_size,
        epochs=epochs,
        steps=taken,
        K=K,
        seed=seed,
        eps=eps,
        F=F,
        rounds=known.rounds,
        points=tuple(points),
        worst=worst,
        suggested_steps=suggested_steps(worst),
        table=tuple(rounds_table(worst, eps, S, K, F=F)),
        mvr=mvr_parameters(worst, S, K, known.rounds, F),
        lite_mvr=mvr_parameters(worst, S, K, known.rounds, F, lite=True),
    )


def _points(
    known: Task,
    problem: Problem,
    population: Population,
    S: int,
    epochs: int | None,
    steps: int | None,
    along: int,
    effort: Effort,
    seed: int,
    progress: Progress | None,
) -> Iterator[tuple[int, Constants]]:
    """Rounds and the constants there."""
    from fedmime.algorithms import fedavg
    from fedmime.engine import simulate
    from fedmime.engine.work import fold_in, run_key

    params = problem.init(fold_in(run_key(seed), 0))
    stops = sorted({round(along * i / (_POINTS - 1)) for i in range(_POINTS)})
    for i, stop in enumerate(stops):
        if stop:  # FedAvg keeps nothing between rounds, so a run can be cut anywhere
            rounds = stop - stops[i - 1]
            run = simulate(
                fedavg(known.eta),
                problem,
                population,
                rounds,
                S,
                known.batch_size,
                epochs,
                steps,
                seed=seed + stop,
                initial=params,
                evaluate_every=rounds,
            )
            params = run.params
        tell = None if progress is None else functools.partial(progress, f"round {stop}")
        yield (
            stop,
            constants(
                problem,
                population,
                params,
                **effort._asdict(),
                batch_size=known.batch_size,
                seed=seed,
                progress=tell,
            ),
        )


def _worst(found: Sequence[Constants]) -> Constants:
    """The largest value of each constant: the theory's hold at every point of a run."""
    largest = {name: max(getattr(one, name) for one in found) for name in ("G2", "sigma2", "L", "delta")}
    return dataclasses.replace(max(found, key=lambda one: one.delta), **largest)
