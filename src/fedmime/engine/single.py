"""One round on explicit data."""

from __future__ import annotations

import contextlib

import jax

from fedmime.aggregation.chains import Aggregation
from fedmime.algorithms.abstract import anchor_of
from fedmime.algorithms.algorithm import Algorithm, State
from fedmime.engine.arguments import aggregator_of, check_round
from fedmime.engine.backends.backend import Problem
from fedmime.engine.backends.specification import Choice, Needs, chosen
from fedmime.engine.cohort import ClientId, Cohort
from fedmime.engine.intake import Intake
from fedmime.engine.memory import ClientMemory, empty_memory, remembered
from fedmime.engine.round import Info, play
from fedmime.engine.work import work_of
from fedmime.errors import ConfigError


def run_round(
    algorithm: Algorithm,
    problem: Problem,
    state: State,
    cohort: Cohort,
    key: jax.Array | None = None,
    *,
    memory: ClientMemory | None = None,
    drift: bool = False,
    aggregation: Aggregation | None = None,
    backend: Choice = "local",
    devices: int | None = None,
) -> tuple[State, Info]:
    """Run one round of an algorithm on a cohort and return the next state and what happened.

    Args:
        key: where the clients' random numbers (dropout) come from; each takes `fold_in(key, round, client, step)`.
        memory: where clients of stateful algorithms keep their values; by default in the state itself.
        drift: also measure the mean of ‖y − x‖² over all local steps.
        aggregation: what happens to clients' messages on their way, from `fm.aggregation`.
        backend: where clients run: `"local"`, `"reference"`, or one of `fm.backends`.
        devices: how many local devices to use; all by default.
    """
    check_round(algorithm, problem, state, cohort, key, memory, drift)
    aggregator = aggregator_of("run_round", aggregation, algorithm, state.server)
    if aggregator.privacy is not None and aggregator.privacy.noise_multiplier is None:
        raise ConfigError("run_round: target_epsilon belongs to a whole run; give gaussian a noise_multiplier")
    if state.aggregation == ():
        state = state._replace(aggregation=aggregator.start())
    intake, refused = Intake(problem.check), ()
    running = chosen("run_round", backend, devices).start(problem, state.server.x.tree, Needs(intake, drift))
    if algorithm.pooled:
        cohort, refused = _pooled(cohort, intake)
    anchor, key = anchor_of(algorithm, state.server), jax.random.key(0) if key is None else key
    work = work_of(algorithm, anchor, state.round, cohort, key, aggregator, prime=state.primes(algorithm))
    with contextlib.closing(running):
        if memory is None and state.memory is None:
            memory = empty_memory(running.stored(remembered(algorithm, aggregator, state.server)))
        state, info = play(running, work, state if memory is None else state._replace(memory=memory), drift=drift)
    return state, info._replace(refused=(*refused, *info.refused))


def _pooled(cohort: Cohort, intake: Intake) -> tuple[Cohort, tuple[ClientId, ...]]:
    """The sound examples of a cohort in the hands of one client, and the clients that were left out."""
    bad = {place for place in range(len(cohort.members)) if intake.refuses(cohort, place)}
    refused = dict.fromkeys(cohort.client_id(cohort.members[place].client) for place in sorted(bad))
    return cohort.pooled(without=bad), tuple(refused)
