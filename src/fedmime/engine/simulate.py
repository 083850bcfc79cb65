"""The loop: sample a cohort, run a round, look at the model, write down what happened, save."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np

from fedmime.aggregation import communication
from fedmime.algorithms.abstract import anchor_of
from fedmime.algorithms.algorithm import Algorithm, State, params
from fedmime.engine.backends.backend import Problem, Work
from fedmime.engine.backends.specification import Choice, chosen
from fedmime.engine.contract import check_metrics
from fedmime.engine.intake import Intake
from fedmime.engine.log import Gate, Log
from fedmime.engine.measure import Watch
from fedmime.engine.participation import Participation
from fedmime.engine.prefetch import Prefetch
from fedmime.engine.round import Info, play, work_of
from fedmime.engine.schedule import Clients, Schedule
from fedmime.errors import ConfigError, DataError, Stopped
from fedmime.runs import history, identity
from fedmime.runs.directory import RunDirectory
from fedmime.runs.run import Run
from fedmime.validation import LARGEST_SEED, choice, count, flag, floating, made, offers, started

_MOST_EXAMPLES = 2**28  # of one client in one round, repeated ones counted: its plan has a number for each


class TrainableProblem(Problem, Protocol):
    """What a run needs of a problem."""

    @property
    def init(self) -> Callable[[jax.Array], Any]: ...


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
    backend: Choice = "local",
    devices: int | None = None,
    dry_run: bool = False,
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
        backend: where clients run: `"local"`, `"reference"`, or one of `fm.backends`.
        devices: how many local devices to use; all by default.
        dry_run: refuse what a run refuses before its first round, its directory included; nothing is trained or
            written.
    """
    schedule = _schedule(population, rounds, cohort_size, batch_size, epochs, steps, seed, weights, algorithm)
    optional = {"run_dir": run_dir, "participation": participation, "saving": saving, "gate": gate, "config": config}
    _check(problem, initial, drift, dry_run, optional | {"on_round": on_round, "stop": stop})
    if participation is not None:
        schedule = dataclasses.replace(schedule, participation=participation)
    watch = Watch(evaluate_every, clients_every, flag("simulate", "evaluate_train", evaluate_train))
    gate, saving = gate or Gate(), saving or Saving()
    key = jax.random.key(seed)
    state = algorithm.init(problem.init(jax.random.fold_in(key, 0)) if initial is None else initial)
    blank = _blank(algorithm, state, schedule)
    intake = Intake.of_run(problem.check, algorithm.pooled)
    look_before(intake, problem, params(state), population)
    expected = None if algorithm.pooled else schedule.expected(population, rounds)
    specification = chosen("simulate", backend, devices)
    running = specification.start(problem, params(state), intake=intake, drift=drift, expected=expected)

    anchor = anchor_of(algorithm, state.server)

    def work(t: int) -> Work:
        return work_of(algorithm, anchor, t, schedule.cohort(algorithm, population, t), key)

    facts = {} if run_dir is None else identity.facts(algorithm, problem, population, schedule, state, initial)
    facts |= {"watch": identity.describe(watch), "gate": identity.describe(gate), "drift": drift}
    if dry_run:
        if run_dir is not None:
            RunDirectory(Path(run_dir), saving.keep).check(facts, saving.fresh)
        return Run({}, state)
    with contextlib.ExitStack() as stack:
        directory = None
        if run_dir is not None:
            directory = stack.enter_context(RunDirectory(Path(run_dir), saving.keep))
            directory.claim(facts, facts if config is None else config, facts["data"], saving.fresh)
            state = directory.resume(state, blank)
        log = stack.enter_context(Log(rounds, gate, communication.cost(algorithm, params(state)), directory))
        intake.say()
        prefetch = Prefetch(work, running, state.round, rounds)
        while state.round < rounds:
            current = prefetch.take()
            state, info = play(running, current, state, gate.largest, drift=drift, meanwhile=prefetch.prepare)
            last = state.round == rounds
            measured = watch.measure(running, population, params(state), state.round, last, log.clients)
            log.write(current, info, measured)
            log.best(state, measured.get("test_accuracy"))
            signal = None if stop is None else stop()
            if state.round % saving.every == 0 or last or signal:
                log.save(state)
            if on_round is not None:
                on_round(info, measured)
            if signal:
                raise Stopped(f"stopped by signal {signal} after round {state.round}; resume goes on", signal)
        log.finish(state)
    return Run(history.columns(log.rows), state)


def _blank(algorithm: Algorithm, state: State, schedule: Schedule) -> Any:
    """What a client that was never seen has kept."""
    blank = jax.tree.map(np.asarray, algorithm.remember(state.server.x))
    if jax.tree.leaves(blank) and schedule.participation.sampler == "with_replacement":
        raise ConfigError("simulate: sampler='with_replacement' may draw a client twice, which cannot keep two values")
    return blank


def look_before(intake: Intake, problem: TrainableProblem, model: Any, population: Clients) -> None:
    """Refuse before the first round what would otherwise end a run in the midst of it.

    Clients in memory are all looked at; those of a store when they are drawn, since reading it all may take hours.
    """
    if getattr(population, "resident", False):
        intake.look_at_all(population)
    else:
        intake.look_at_first(population)
    if population.test is not None:
        intake.accept("test set", population.test)
        check_metrics(problem, model, population.test)


_KINDS = {
    "run_dir": (str | os.PathLike, "be a path"),
    "participation": (Participation, "be an fm.Participation"),
    "saving": (Saving, "be an fm.Saving"),
    "gate": (Gate, "be an fm.Gate"),
    "config": (Mapping, "be a dict"),
    "on_round": (Callable, "be a function"),
    "stop": (Callable, "be a function"),
}


def _check(problem: Any, initial: Any, drift: Any, dry_run: Any, optional: Mapping[str, Any]) -> None:
    """Check arguments that only simulate looks at; `optional` are those that may be None."""
    offers("simulate", "problem", problem, ("loss", "check", "init", "metrics"), "come from fm.models")
    if initial is not None:
        started("simulate", "initial", floating("simulate", "initial", initial), problem.init)
    flag("simulate", "drift", drift)
    flag("simulate", "dry_run", dry_run)
    for name, value in optional.items():
        if value is not None:
            made("simulate", name, value, *_KINDS[name])


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
    seed = count("simulate", "seed", seed, most=LARGEST_SEED)
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
    schedule = Schedule(cohort_size, batch_size, epochs, steps, seed, weights)
    largest = int(population.sizes.max())
    examples = int(schedule.lengths(np.array([largest]))[0]) * (batch_size or largest)
    if examples > _MOST_EXAMPLES:
        raise ConfigError(
            f"simulate: the largest client would take {examples:,} examples in a round (batch_size={batch_size}, "
            f"epochs={epochs}, steps={steps}); accepted are at most {_MOST_EXAMPLES:,}"
        )
    return schedule
