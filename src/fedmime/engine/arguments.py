"""Checks of what `simulate` and `run_round` are called with, before anything is computed."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from fedmime.aggregation.accounting import MOST_RELEASES, Sampling
from fedmime.aggregation.aggregator import PLAIN, Aggregator, by_length
from fedmime.aggregation.chains import Aggregation, chain
from fedmime.aggregation.gate import Gate
from fedmime.algorithms.abstract import reply_of
from fedmime.algorithms.algorithm import Algorithm, Reply, State
from fedmime.engine import samplers
from fedmime.engine.cohort import Cohort
from fedmime.engine.contract import check_metrics
from fedmime.engine.intake import Intake
from fedmime.engine.participation import RELIABLE, Participation
from fedmime.engine.sampling import Clients, Schedule
from fedmime.errors import ConfigError, DataError
from fedmime.hyperparameters import at_round
from fedmime.runs.directory import Saving
from fedmime.trackers.callback import Callback
from fedmime.validation import (
    LARGEST_SEED,
    choice,
    count,
    flag,
    floating,
    made,
    offers,
    random_key,
    started,
)

MOST_EXAMPLES = 2**28  # of one client in one round, repeated ones counted: its plan has a number for each
_KINDS = {
    "run_dir": (str | os.PathLike, "be a path"),
    "participation": (Participation, "be an fm.Participation"),
    "saving": (Saving, "be an fm.Saving"),
    "gate": (Gate, "be an fm.Gate"),
    "config": (Mapping, "be a dict"),
    "callbacks": (list | tuple, "be a list of fm.trackers"),
    "on_round": (Callable, "be a function"),
    "stop": (Callable, "be a function"),
}


def check_run(problem: Any, initial: Any, flags: Mapping[str, Any], optional: Mapping[str, Any]) -> None:
    """Check the arguments of `simulate` that do not decide how cohorts are drawn.

    Args:
        flags: arguments that must be True or False, by name.
        optional: arguments that may be None, by name; `_KINDS` says what they are otherwise.
    """
    offers("simulate", "problem", problem, ("loss", "check", "init", "metrics"), "come from fm.models")
    if initial is not None:
        started("simulate", "initial", floating("simulate", "initial", initial), problem.init)
    for name, value in flags.items():
        flag("simulate", name, value)
    for name, value in optional.items():
        if value is not None:
            made("simulate", name, value, *_KINDS[name])
    for callback in optional.get("callbacks") or ():
        made("simulate", "callbacks", callback, Callback, "come from fm.trackers or extend fm.trackers.Callback")


def schedule_of(
    algorithm: Algorithm,
    population: Clients,
    rounds: int,
    cohort_size: int,
    batch_size: int | None,
    epochs: int | None,
    steps: int | None,
    seed: int,
    weights: str,
    participation: Participation | None,
) -> Schedule:
    """The schedule of a run, after the arguments of `simulate` that decide it were checked."""
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
    schedule = Schedule(cohort_size, batch_size, epochs, steps, seed, weights, participation or RELIABLE)
    largest = int(population.sizes.max())
    examples = int(schedule.lengths(np.array([largest]))[0]) * (batch_size or largest)
    if examples > MOST_EXAMPLES:
        raise ConfigError(
            f"simulate: the largest client would take {examples:,} examples in a round (batch_size={batch_size}, "
            f"epochs={epochs}, steps={steps}); accepted are at most {MOST_EXAMPLES:,}"
        )
    return schedule


def aggregator_of(owner: str, aggregation: Aggregation | None, algorithm: Algorithm, server: Any) -> Aggregator:
    """The aggregator that an argument asks for, if it can serve the algorithm."""
    aggregator, name = PLAIN if aggregation is None else chain(aggregation), type(algorithm).__name__
    if algorithm.pooled and aggregator != PLAIN:
        raise ConfigError(f"{owner}: aggregation must be None for {name}: nothing is sent in pooled training")
    reply = reply_of(algorithm, server) if algorithm.local_steps and aggregator != PLAIN else Reply()
    if not aggregator.combiner.linear and jax.tree.leaves(reply.add):
        words = f"{type(aggregator.combiner).__name__} cannot combine what clients of {name} send to be summed"
        raise ConfigError(f"{owner}: {words}, which one of them could move anywhere; clip it and take the mean")
    if (aggregator.clips or not aggregator.combiner.linear) and by_length((reply.send, reply.add))[1]:
        part = "clip" if aggregator.clips else type(aggregator.combiner).__name__
        words = f"{part} measures a message as one vector, and clients of {name} send numbers beside theirs"
        raise ConfigError(f"{owner}: {words}; give an aggregation that only compresses")
    if aggregator.privacy is not None:
        if jax.tree.leaves((reply.add, reply.keep)):
            raise ConfigError(
                f"{owner}: gaussian cannot protect {name}, whose clients send or keep more than an update"
            )
        if algorithm.counts_steps:
            raise ConfigError(f"{owner}: gaussian cannot protect {name}, whose server needs the clients' local steps")
        if max(_releases(algorithm, server)) > MOST_RELEASES:
            words = f"gaussian accounts for at most {MOST_RELEASES} messages of a client in a round"
            raise ConfigError(f"{owner}: {words}, got {max(_releases(algorithm, server))} of {name}")
    return aggregator


def _releases(algorithm: Algorithm, server: Any) -> tuple[int, int]:
    """How many messages of a client a round releases, and how many a gradient-only round."""
    asked = len(algorithm.prime_points(server)) if algorithm.gradient_rounds else 1
    return len(algorithm.points(server)) + algorithm.local_steps, asked


def aggregator_of_run(
    aggregation: Aggregation | None,
    algorithm: Algorithm,
    server: Any,
    schedule: Schedule,
    population: Clients,
    rounds: int,
) -> tuple[Aggregator, Sampling | None]:
    """The aggregator with the noise that its ε needs, and how cohorts are sampled; None where nothing is private.

    Accounting for privacy assumes that all clients weigh the same and that cohorts are drawn blindly.
    """
    aggregator, taking = aggregator_of("simulate", aggregation, algorithm, server), schedule.participation
    if not aggregator.combiner.linear and taking.sampler == "with_replacement":
        name = type(aggregator.combiner).__name__
        raise ConfigError(f"simulate: {name} needs cohorts of different clients, got sampler={taking.sampler!r}")
    if aggregator.privacy is None:
        return aggregator, None
    clients = int(np.count_nonzero(population.sizes))
    if schedule.weights != "uniform":
        raise ConfigError(
            f"simulate: gaussian needs clients of equal weight: weights='uniform', got {schedule.weights!r}"
        )
    if taking.sampler not in ("uniform", "poisson"):
        raise ConfigError(f"simulate: gaussian needs sampler='uniform' or 'poisson', got {taking.sampler!r}")
    if taking.sampler == "poisson" and taking.minimum:
        words = "gaussian with sampler='poisson' must carry out every round: minimum=0"
        raise ConfigError(f"simulate: {words}, got {taking.minimum!r}; who is abandoned would tell how many came")
    if taking.sampler == "poisson" and algorithm.split:
        raise ConfigError("simulate: gaussian with sampler='poisson' needs split=False: halves depend on who comes")
    kind = "poisson" if taking.sampler == "poisson" else "fixed"
    asked = min(samplers.over_selected(schedule.cohort_size, taking.over_selection), clients)
    sampling = Sampling(kind, asked, clients)
    releases, asked_for = _releases(algorithm, server)
    noise = aggregator.privacy.resolve(sampling, rounds, releases, min(algorithm.gradient_rounds, rounds), asked_for)
    return dataclasses.replace(aggregator, privacy=noise), sampling


def blank_memory(blank: Any, schedule: Schedule) -> Any:
    """What a client that was never seen has kept; samplers that may draw a client twice cannot serve such clients."""
    if jax.tree.leaves(blank) and schedule.participation.sampler == "with_replacement":
        raise ConfigError("simulate: sampler='with_replacement' may draw a client twice, which cannot keep two values")
    return blank


def intake_of(problem: Any, pooled: bool, model: Any, population: Clients) -> Intake:
    """The intake of a run. Data that would end the run in the midst of it is refused before the first round.

    Clients in memory are all looked at; those of a store when they are drawn, since reading it all may take hours; and
    clients that are elsewhere look at their own data.
    """
    intake = Intake.of_run(problem.check, pooled)
    if getattr(population, "resident", False):
        intake.look_at_all(population)
    elif not getattr(population, "elsewhere", False):
        intake.look_at_first(population)
    if population.test is not None:
        intake.accept("test set", population.test)
        check_metrics(problem, model, population.test)
    return intake


def check_round(
    algorithm: Algorithm, problem: Any, state: State, cohort: Cohort, key: Any, memory: Any, drift: Any
) -> None:
    """Check the arguments of `run_round`."""
    made("run_round", "algorithm", algorithm, Algorithm, "come from fm.algorithms")
    offers("run_round", "problem", problem, ("name", "loss", "factors", "chunk", "check"), "come from fm.models")
    made("run_round", "state", state, State, "come from algorithm.init(params)")
    made("run_round", "cohort", cohort, Cohort, "come from fm.Cohort.from_batches")
    if key is not None:
        random_key("run_round", "key", key)
    if memory is not None:
        offers("run_round", "memory", memory, ("read", "write"), "be a client memory")
    flag("run_round", "drift", drift)
    own = jax.tree.structure(jax.eval_shape(lambda: at_round(algorithm, 0).start(state.server.x)))
    if jax.tree.structure(state.server) != own:
        kinds = f"init of this very {type(algorithm).__name__}, got a {type(state.server).__name__}"
        raise ConfigError(f"run_round: state must come from the {kinds} of another algorithm or base")
    started("run_round", "params", state.server.x.tree, getattr(problem, "init", None))
    asks = algorithm.prime_points if state.primes(algorithm) else algorithm.points
    name = type(algorithm).__name__
    if not cohort.probing and asks(state.server):
        raise DataError(f"run_round: the cohort has no client to ask for gradients; {name} needs one")
    if not cohort.members:
        raise DataError("run_round: the cohort has no client; give at least one")
    if algorithm.local_steps and not cohort.training:
        raise DataError("run_round: the cohort has no client that trains")
    if algorithm.split and not any(m.sends_gradient and not m.steps for m in cohort.members):
        raise DataError("run_round: split cohorts need clients that only send gradients; give them as full=[...]")
