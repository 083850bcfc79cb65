"""The loop: sample a cohort, run a round, look at the model, write down what happened, save."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import jax

from fedmime.aggregation import communication
from fedmime.aggregation.accounting import Sampling
from fedmime.aggregation.aggregator import PLAIN, Aggregator
from fedmime.aggregation.chains import Aggregation
from fedmime.aggregation.gate import Gate
from fedmime.algorithms.abstract import anchor_of
from fedmime.algorithms.algorithm import Algorithm, State, params
from fedmime.compilation import prepare
from fedmime.engine.arguments import (
    aggregator_of_run,
    blank_memory,
    check_run,
    intake_of,
    schedule_of,
)
from fedmime.engine.backends.backend import Problem, Work
from fedmime.engine.backends.specification import Choice, Needs, chosen
from fedmime.engine.evaluation_schedule import EvaluationSchedule
from fedmime.engine.log import Log
from fedmime.engine.memory import empty_memory, remembered
from fedmime.engine.participation import Participation
from fedmime.engine.prefetch import Prefetch
from fedmime.engine.round import Info, play
from fedmime.engine.sampling import Clients
from fedmime.engine.work import fold_in, run_key, work_of
from fedmime.errors import Stopped
from fedmime.runs import history, identity
from fedmime.runs.directory import RunDirectory, Saving
from fedmime.runs.run import Run
from fedmime.trackers.callback import Callback, Started
from fedmime.trackers.telling import Telling


class TrainableProblem(Problem, Protocol):
    """What a run needs of a problem."""

    @property
    def init(self) -> Callable[[jax.Array], Any]: ...


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
    aggregation: Aggregation | None = None,
    config: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callback] = (),
    on_round: Callable[[Info, Mapping[str, float]], None] | None = None,
    stop: Callable[[], int | None] | None = None,
    drift: bool = False,
    backend: Choice = "local",
    devices: int | None = None,
    dry_run: bool = False,
    sources: Mapping[str, str] | None = None,
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
        aggregation: what happens to clients' messages on their way, from `fm.aggregation`: compression, clipping and
            noise, robust means. By default nothing; their weighted mean is taken.
        config: what to write as the run's configuration, instead of the arguments.
        callbacks: who is told of the run as it goes, from `fm.trackers`; one that fails does not end the run.
        on_round: called after every round with what happened and the metrics measured, if any.
        stop: called once in every round; the number of a signal ends the run after it, saved.
        drift: also measure the clients' mean squared distance from the server model.
        backend: where clients run: `"local"`, `"reference"`, or one of `fm.backends`.
        devices: how many local devices to use; all by default.
        dry_run: refuse what a run refuses before its first round, its directory included; nothing is trained or
            written.
        sources: versions of code that decides the numbers, such as digests of files, by what they are of. A run in a
            directory goes on with the same versions only.
    """
    schedule = schedule_of(
        algorithm, population, rounds, cohort_size, batch_size, epochs, steps, seed, weights, participation
    )
    check_run(
        problem,
        initial,
        {"drift": drift, "dry_run": dry_run, "evaluate_train": evaluate_train},
        {"run_dir": run_dir, "participation": participation, "saving": saving, "gate": gate, "config": config}
        | {"callbacks": callbacks, "on_round": on_round, "stop": stop},
    )
    evaluation = EvaluationSchedule(evaluate_every, clients_every, evaluate_train)
    prepare()  # before anything is compiled
    gate, saving, key = gate or Gate(), saving or Saving(), run_key(int(seed))
    state = algorithm.init(problem.init(fold_in(key, 0)) if initial is None else initial)
    aggregator, sampling = aggregator_of_run(aggregation, algorithm, state.server, schedule, population, rounds)
    state = state._replace(aggregation=aggregator.start(), losses=schedule.participation.unknown(population.sizes))
    blank = blank_memory(remembered(algorithm, aggregator, state.server), schedule)
    intake = intake_of(problem, algorithm.pooled, params(state), population)
    needs = Needs(intake, drift, None if algorithm.pooled else schedule.expected(population, rounds))
    specification = chosen("simulate", backend, devices)
    anchor, uses_losses = (
        anchor_of(algorithm, state.server),
        schedule.participation.uses_losses and not algorithm.pooled,
    )

    def work(t: int) -> Work:
        return work_of(
            algorithm,
            anchor,
            t,
            schedule.cohort(algorithm, population, t, state.losses),
            key,
            aggregator,
            uses_losses,
            state.primes(algorithm),
        )

    facts = (
        {}
        if run_dir is None and not callbacks
        else (
            identity.facts(algorithm, problem, population, schedule, state, initial)
            | _messages(aggregator, sampling)
            | {"evaluation": evaluation.facts(), "gate": identity.describe(gate), "drift": drift}
            | ({"sources": dict(sources)} if sources else {})
        )
    )
    directory = None if run_dir is None else RunDirectory(Path(run_dir), saving.keep)
    starting = contextlib.closing(specification.start(problem, params(state), needs))
    # The back end is closed before the run directory, so that the last lines of its log are written.
    with contextlib.ExitStack() as stack, starting as running:
        if dry_run:
            return _dry_run(directory, facts, saving, state, rounds)
        stored = running.stored(blank)
        state = state._replace(memory=empty_memory(stored))
        if directory is not None:
            stack.enter_context(directory)
            directory.claim(facts, facts if config is None else config, running.layout, saving.fresh, rounds)
            state = directory.resume(state, stored, given=initial is not None)
        running.memory = state.memory  # before the first round: workers of Ray check whether they can open its file
        cost = communication.cost(algorithm, params(state), aggregator)
        log = stack.enter_context(Log(rounds, gate, running.traffic(cost, algorithm), directory))
        started = Started(type(algorithm).__name__, facts if config is None else config, rounds, state.round)
        telling = stack.enter_context(_telling(callbacks, log, started, directory))
        intake.say()
        prefetch = Prefetch(work, running, state.round, rounds, after_previous=uses_losses)
        while state.round < rounds:
            current = prefetch.take()
            state, info = play(running, current, state, gate.largest, drift=drift, meanwhile=prefetch.prepare)
            last, info = state.round == rounds, info._replace(epsilon=aggregator.epsilon(state.aggregation, sampling))
            measured = evaluation.measure(running, population, state, last, log.clients)
            log.write(current, info, measured, running.telemetry())
            if telling is not None:
                telling.rounds()
            log.best(state, measured)
            signal = None if stop is None else stop()
            if state.round % saving.every == 0 or last or signal:
                log.save(state)
            if on_round is not None:
                on_round(info, measured)
            if signal:
                raise Stopped(f"stopped by signal {signal} after round {state.round}; resume goes on", signal)
        log.finish(state)
    return Run(history.columns(log.rows), state)


def _dry_run(
    directory: RunDirectory | None, facts: Mapping[str, Any], saving: Saving, state: State, rounds: int
) -> Run:
    """Refuse a directory that the run would refuse; what a dry run returns, which has no rounds."""
    if directory is not None:
        directory.check(facts, saving.fresh, rounds)
    return Run({}, state)


def _telling(
    callbacks: Sequence[Callback], log: Log, started: Started, directory: RunDirectory | None
) -> contextlib.AbstractContextManager[Telling | None]:
    """What tells the callbacks of a run; None where there are none."""
    if not callbacks:
        return contextlib.nullcontext()
    return Telling(callbacks, log.rows, started, None if directory is None else directory.path)


def _messages(aggregator: Aggregator, sampling: Sampling | None) -> dict[str, Any]:
    """What the identity of a run says about its messages; nothing if they are only averaged."""
    if aggregator == PLAIN:
        return {}
    return {"aggregation": {**identity.describe(aggregator), "sampling": identity.describe(sampling)}}
