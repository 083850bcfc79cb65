"""The loop: sample a cohort, run a round, look at the model, remember what happened."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np

from fedmime.algorithms.algorithm import Algorithm, State, params
from fedmime.engine.evaluate import evaluate
from fedmime.engine.intake import Intake
from fedmime.engine.memory import DiskMemory
from fedmime.engine.participation import Participation
from fedmime.engine.round import Info, Problem, Ready, assemble, default_layout, run_ready
from fedmime.engine.schedule import Clients, Schedule
from fedmime.errors import ConfigError, DataError, Diverged
from fedmime.numbers import choice, count, flag, floating, function, made, offers, started

_LAST_SEED = 2**63 - 1  # what JAX makes a key of
_PATIENCE = 3  # abandoned rounds in a row before a run gives up


class TrainableProblem(Problem, Protocol):
    """What a run needs of a problem."""

    @property
    def init(self) -> Callable[[jax.Array], Any]: ...
    @property
    def metrics(self) -> Callable[[Any, Any], dict[str, tuple[jax.Array, jax.Array]]]: ...


@dataclasses.dataclass(frozen=True)
class Run:
    """A finished run."""

    state: State
    history: dict[str, np.ndarray]
    """One entry per round for every figure; NaN in rounds that did not measure it."""

    @property
    def params(self) -> Any:
        """The final server model, a plain pytree."""
        return params(self.state)


def simulate(
    algorithm: Algorithm,
    problem: TrainableProblem,
    population: Clients,
    rounds: int,
    cohort_size: int,
    batch_size: int | None = 10,
    epochs: int | None = None,
    steps: int | None = None,
    seed: int = 0,
    *,
    weights: str = "examples",
    participation: Participation | None = None,
    evaluate_every: int = 10,
    initial: Any = None,
    run_dir: str | Path | None = None,
    on_round: Callable[[Info, Mapping[str, float]], None] | None = None,
    drift: bool = False,
    devices: int | None = None,
) -> Run:
    """Train for a number of rounds and return the final state with the history of every figure.

    Args:
        epochs: local passes over a client's data, each in a new order (default 1); or
        steps: local steps, instead of epochs.
        batch_size: None takes all of a client's examples at every step.
        weights: average clients by `"examples"` (n_i) or `"uniform"`.
        participation: how cohorts are drawn, who drops out, how many more are asked; uniform and reliable by default.
        evaluate_every: rounds between evaluations on `population.test`; the last round is always evaluated.
        initial: the model to start from, instead of `problem.init`.
        run_dir: where `metrics.jsonl` goes, and what clients of SCAFFOLD and FedDyn keep, instead of memory.
        on_round: called after every round with what happened and the metrics measured, if any.
        drift: also measure the clients' mean squared distance from the server model.
    """
    schedule = _schedule(
        population, rounds, cohort_size, batch_size, epochs, steps, seed, weights, algorithm, evaluate_every
    )
    offers("simulate", "problem", problem, ("loss", "check", "init", "metrics"), "come from fm.models")
    if initial is not None:
        started("simulate", "initial", floating("simulate", "initial", initial), problem.init)
    if run_dir is not None:
        made("simulate", "run_dir", run_dir, str | os.PathLike, "be a path")
    if on_round is not None:
        function("simulate", "on_round", on_round)
    if participation is not None:
        made("simulate", "participation", participation, Participation, "be an fm.Participation")
        schedule = dataclasses.replace(schedule, participation=participation)
    flag("simulate", "drift", drift)
    layout = default_layout(problem, devices)
    intake = Intake(problem.check, once=not algorithm.pooled)
    key = jax.random.key(seed)
    state = algorithm.init(problem.init(jax.random.fold_in(key, 0)) if initial is None else initial)
    log = _Log(run_dir)
    blank = algorithm.remember(state.server.x)
    if jax.tree.leaves(blank) and schedule.participation.sampler == "with_replacement":
        raise ConfigError("simulate: sampler='with_replacement' may draw a client twice, which cannot keep two values")
    if run_dir is not None and jax.tree.leaves(blank):
        state = state._replace(memory=DiskMemory(jax.tree.map(np.asarray, blank), Path(run_dir) / "clients.memory"))
    model = state.server.x
    abandoned = 0

    def lay_out(t: int) -> Ready:
        cohort = schedule.cohort(algorithm, population, t)
        return assemble(
            algorithm, problem, model, t, cohort, key, devices=devices, drift=drift, layout=layout, intake=intake
        )

    for t, ready in enumerate(_ahead(lay_out, rounds)):
        state, info = run_ready(ready, state)
        abandoned = abandoned + 1 if info.abandoned and info.clients else 0  # nobody there is no divergence
        if abandoned == _PATIENCE:
            raise Diverged(
                f"simulate: {_PATIENCE} rounds in a row gave no finite model, the last of them round {t}; lower eta"
            )
        due = population.test is not None and ((t + 1) % evaluate_every == 0 or t + 1 == rounds)
        measured = evaluate(problem, params(state), population.test) if due and population.test is not None else {}
        log.write(info, measured)
        if on_round is not None:
            on_round(info, measured)
    return Run(state, log.columns())


def _ahead(make: Callable[[int], Ready], rounds: int) -> Iterator[Ready]:
    """Each round's layout in turn, the next one made in the background while this one is used."""
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="fedmime-cohort") as background:
        coming = background.submit(make, 0)
        for t in range(rounds):
            ready = coming.result()
            if t + 1 < rounds:
                coming = background.submit(make, t + 1)
            yield ready


class _Log:
    """The rows of a run's history, also written as JSON lines where there is a run directory."""

    def __init__(self, run_dir: str | Path | None) -> None:
        self._rows: list[dict[str, float]] = []
        self._file = None
        if run_dir is not None:
            Path(run_dir).mkdir(parents=True, exist_ok=True)
            self._file = Path(run_dir) / "metrics.jsonl"
            self._file.write_text("")

    def write(self, info: Info, measured: Mapping[str, float]) -> None:
        row = {**info._asdict(), "refused": len(info.refused), **{f"test_{name}": v for name, v in measured.items()}}
        self._rows.append(row)
        if self._file is not None:
            with self._file.open("a") as file:
                file.write(json.dumps(row) + "\n")

    def columns(self) -> dict[str, np.ndarray]:
        names: Sequence[str] = list(dict.fromkeys(name for row in self._rows for name in row))
        return {name: np.asarray([row.get(name, np.nan) for row in self._rows]) for name in names}


def _schedule(
    population: Clients,
    rounds: int,
    cohort_size: int,
    batch_size: int | None,
    epochs: int | None,
    steps: int | None,
    seed: int,
    weights: str,
    algorithm: Algorithm,
    evaluate_every: int,
) -> Schedule:
    """Check what a run was asked for, before anything is computed."""
    made("simulate", "algorithm", algorithm, Algorithm, "come from fm.algorithms")
    offers("simulate", "population", population, ("sizes", "client_at"), "come from fm.data")
    for name, value in (("rounds", rounds), ("cohort_size", cohort_size), ("evaluate_every", evaluate_every)):
        count("simulate", name, value, least=1)
    for name, value in (("batch_size", batch_size), ("epochs", epochs), ("steps", steps)):
        if value is not None:
            count("simulate", name, value, least=1)
    seed = count("simulate", "seed", seed, most=_LAST_SEED)
    choice("simulate", "weights", weights, ("examples", "uniform"))
    if epochs is not None and steps is not None:
        raise ConfigError(f"simulate: give epochs or steps, not both (epochs={epochs}, steps={steps})")
    clients = int(np.count_nonzero(population.sizes))
    if not clients:
        raise DataError("simulate: no client of the population has an example")
    if cohort_size > clients:
        raise ConfigError(f"simulate: cohort_size={cohort_size} exceeds the {clients} clients with examples; lower it")
    if algorithm.split and cohort_size % 2:
        raise ConfigError(f"simulate: split cohorts have two halves, so cohort_size must be even, got {cohort_size}")
    if epochs is None and steps is None:
        epochs = 1
    return Schedule(cohort_size, batch_size, epochs, steps, seed, weights)
