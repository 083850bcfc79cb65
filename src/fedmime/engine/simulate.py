"""The loop: sample a cohort, run a round, look at the model, write down what happened, save."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np

from fedmime.aggregation import communication
from fedmime.algorithms.algorithm import Algorithm, params
from fedmime.engine import identity, record
from fedmime.engine.ahead import Layouts, run_all
from fedmime.engine.devices import mesh
from fedmime.engine.directory import RunDirectory
from fedmime.engine.intake import Intake
from fedmime.engine.laid import leaves_some
from fedmime.engine.log import Gate, Log
from fedmime.engine.measure import Watch
from fedmime.engine.participation import Participation
from fedmime.engine.plan import WAVE_BYTES, Layout
from fedmime.engine.pool import Pool
from fedmime.engine.round import Info, Problem, Ready, assemble, default_layout, owned, shapes
from fedmime.engine.run import Run
from fedmime.engine.schedule import Clients, Schedule
from fedmime.errors import ConfigError, DataError, Stopped
from fedmime.numbers import choice, count, flag, floating, function, made, offers, started

_LAST_SEED = 2**63 - 1  # what JAX makes a key of


class TrainableProblem(Problem, Protocol):
    """What a run needs of a problem."""

    @property
    def init(self) -> Callable[[jax.Array], Any]: ...
    @property
    def metrics(self) -> Callable[[Any, Any], dict[str, tuple[jax.Array, jax.Array]]]: ...


@dataclasses.dataclass(frozen=True)
class Saving:
    """How a run with a directory is saved.

    Args:
        every: rounds between checkpoints; the last round is always saved.
        keep: how many of the last checkpoints stay, beside the best one.
        fresh: remove an earlier run in the directory instead of going on with it.
    """

    every: int = 50
    keep: int = 3
    fresh: bool = False

    def __post_init__(self) -> None:
        count("saving", "every", self.every, least=1)
        count("saving", "keep", self.keep, least=1)
        flag("saving", "fresh", self.fresh)


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
    clients_every: int | None = None,
    evaluate_train: bool = False,
    initial: Any = None,
    run_dir: str | Path | None = None,
    saving: Saving | None = None,
    gate: Gate | None = None,
    config: Mapping[str, Any] | None = None,
    on_round: Callable[[Info, Mapping[str, float]], None] | None = None,
    stop: Callable[[], int | None] | None = None,
    drift: bool = False,
    devices: int | None = None,
) -> Run:
    """Train for a number of rounds and return the final state with the history of every figure.

    With a `run_dir` everything is also written there, and the same call goes on where an earlier one was broken off:
    the numbers are those of an unbroken run, to the last bit.

    Args:
        epochs: local passes over a client's data, each in a new order (default 1); or
        steps: local steps, instead of epochs.
        batch_size: None takes all of a client's examples at every step.
        weights: average clients by `"examples"` (n_i) or `"uniform"`.
        participation: how cohorts are drawn, who drops out, how many more are asked; uniform and reliable by default.
        evaluate_every: rounds between evaluations on `population.test`; the last round is always evaluated.
        clients_every: rounds between evaluations of clients one by one on `population.test_clients` (at most 500 of
            them), the last round included; 0 does so after the last round only, None never.
        evaluate_train: evaluate on all examples of all clients, too, as `train_loss` and so on.
        initial: the model to start from, instead of `problem.init`.
        run_dir: where the run is written, and what clients of SCAFFOLD and FedDyn keep, instead of memory.
        saving: how often, and how many checkpoints stay.
        gate: what counts as exploded, and when to give up.
        config: what to write as the run's configuration, instead of the arguments.
        on_round: called after every round with what happened and the metrics measured, if any.
        stop: called once in every round; the number of a signal ends the run after it, saved.
        drift: also measure the clients' mean squared distance from the server model.
    """
    schedule = _schedule(population, rounds, cohort_size, batch_size, epochs, steps, seed, weights, algorithm)
    _check(problem, initial, run_dir, on_round, participation, drift)
    if participation is not None:
        schedule = dataclasses.replace(schedule, participation=participation)
    watch = Watch(evaluate_every, clients_every, flag("simulate", "evaluate_train", evaluate_train))
    gate, saving = gate or Gate(), saving or Saving()
    key = jax.random.key(seed)
    state = algorithm.init(problem.init(jax.random.fold_in(key, 0)) if initial is None else initial)
    blank = jax.tree.map(np.asarray, algorithm.remember(state.server.x))
    if jax.tree.leaves(blank) and schedule.participation.sampler == "with_replacement":
        raise ConfigError("simulate: sampler='with_replacement' may draw a client twice, which cannot keep two values")
    layout = default_layout(problem, devices)
    server = shapes(state.server)
    reserve(layout, algorithm, population, schedule, rounds)
    intake = Intake(problem.check, once=not algorithm.pooled)

    def lay_out(t: int) -> Ready:
        cohort = schedule.cohort(algorithm, population, t)
        options = {"devices": devices, "drift": drift, "layout": layout, "intake": intake, "largest": gate.largest}
        return assemble(algorithm, problem, server, t, cohort, key, **options, donate=True)

    with contextlib.ExitStack() as stack:
        directory = None
        if run_dir is not None:
            directory = stack.enter_context(RunDirectory(Path(run_dir), saving.keep))
            facts = identity.facts(algorithm, problem, population, schedule, state, initial)
            facts |= {"watch": identity.describe(watch), "gate": identity.describe(gate), "drift": drift}
            directory.claim(facts, facts if config is None else config, facts["data"], saving.fresh)
            state = directory.resume(state, blank)
        state = owned(state, devices)  # rounds use it up, not the caller's model
        log = stack.enter_context(Log(rounds, gate, communication.cost(algorithm, params(state)), directory))

        @functools.lru_cache(maxsize=1)
        def signal_in(done: int) -> int | None:
            return None if stop is None else stop()

        def needed(done: int) -> bool:
            saved = directory is not None and done % saving.every == 0
            return saved or watch.due(population, done, done == rounds) or bool(signal_in(done))

        layouts, watched = Layouts(lay_out, state.round, rounds), on_round is not None
        going = run_all(layouts, state, rounds, needed, watched)
        for ready, state, info in going:
            last = state.round == rounds
            measured = watch.measure(problem, population, params(state), state.round, last, log.clients)
            log.write(ready, info, measured)
            log.best(state, measured.get("test_accuracy"))
            signal = signal_in(state.round)
            if state.round % saving.every == 0 or last or signal:
                log.save(state)
            if on_round is not None:
                on_round(info, measured)
            if signal:
                raise Stopped(f"stopped by signal {signal} after round {state.round}; resume goes on", signal)
        log.finish(state)
    return Run(record.columns(log.rows), state)


def reserve(layout: Layout, algorithm: Algorithm, population: Clients, schedule: Schedule, rounds: int) -> None:
    """Size the tables for the cohorts to come, and see whether clients' examples can stay where they are.

    Cohorts that go in waves find their sizes as they come.
    """
    if algorithm.pooled:
        return
    there = np.flatnonzero(population.sizes)
    sizes = population.sizes[there]
    first, last = (population.client_at(int(i)) for i in there[[0, -1]])
    cohort = sum(column.nbytes for column in first.values()) / sizes[0] * sizes.mean() * schedule.cohort_size
    if cohort < WAVE_BYTES / 2:
        common = leaves_some(algorithm, layout)
        layout.reserve(sizes, schedule.lengths(sizes), schedule.cohort_size, common=common)
    if getattr(population, "resident", False) and len(there) > 1:
        layout.pool = Pool.around([first, last], mesh(layout.devices), worth=rounds * cohort)


def _check(problem: Any, initial: Any, run_dir: Any, on_round: Any, participation: Any, drift: Any) -> None:
    """Check arguments that only simulate looks at."""
    offers("simulate", "problem", problem, ("loss", "check", "init", "metrics"), "come from fm.models")
    if initial is not None:
        started("simulate", "initial", floating("simulate", "initial", initial), problem.init)
    if run_dir is not None:
        made("simulate", "run_dir", run_dir, str | os.PathLike, "be a path")
    if on_round is not None:
        function("simulate", "on_round", on_round)
    if participation is not None:
        made("simulate", "participation", participation, Participation, "be an fm.Participation")
    flag("simulate", "drift", drift)


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
) -> Schedule:
    """Check what a run was asked for, before anything is computed."""
    made("simulate", "algorithm", algorithm, Algorithm, "come from fm.algorithms")
    offers("simulate", "population", population, ("sizes", "client_at"), "come from fm.data")
    for name, value in (("rounds", rounds), ("cohort_size", cohort_size)):
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
