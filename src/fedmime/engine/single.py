"""One round on explicit data."""

from __future__ import annotations

import functools
from typing import Any

import jax

from fedmime.algorithms.abstract import anchor_of
from fedmime.algorithms.algorithm import Algorithm, State
from fedmime.engine.backends.backend import Problem
from fedmime.engine.backends.specification import Choice, chosen
from fedmime.engine.cohort import ClientId, Cohort
from fedmime.engine.intake import Intake
from fedmime.engine.memory import ClientMemory
from fedmime.engine.round import Info, play, work_of
from fedmime.errors import ConfigError, DataError
from fedmime.hyperparameters import at_round
from fedmime.validation import flag, made, offers, random_key, started


def run_round(
    algorithm: Algorithm,
    problem: Problem,
    state: State,
    cohort: Cohort,
    key: jax.Array | None = None,
    *,
    memory: ClientMemory | None = None,
    drift: bool = False,
    backend: Choice = "local",
    devices: int | None = None,
) -> tuple[State, Info]:
    """Run one round of an algorithm on a cohort and return the next state and what happened.

    Args:
        key: where the clients' random numbers (dropout) come from; each takes `fold_in(key, round, client, step)`.
        memory: where clients of stateful algorithms keep their values; by default in the state itself.
        drift: also measure the mean of ‖y − x‖² over all local steps.
        backend: where clients run: `"local"`, `"reference"`, or one of `fm.backends`.
        devices: how many local devices to use; all by default.
    """
    made("run_round", "algorithm", algorithm, Algorithm, "come from fm.algorithms")
    offers("run_round", "problem", problem, ("name", "loss", "factors", "chunk", "check"), "come from fm.models")
    made("run_round", "state", state, State, "come from algorithm.init(params)")
    made("run_round", "cohort", cohort, Cohort, "come from fm.Cohort.from_batches")
    if key is not None:
        random_key("run_round", "key", key)
    if memory is not None:
        offers("run_round", "memory", memory, ("read", "write"), "be a client memory")
    flag("run_round", "drift", drift)
    if jax.tree.structure(state.server) != _server_structure(algorithm, state.server.x):
        kinds = f"init of this very {type(algorithm).__name__}, got a {type(state.server).__name__}"
        raise ConfigError(f"run_round: state must come from the {kinds} of another algorithm or base")
    started("run_round", "params", state.server.x.tree, getattr(problem, "init", None))
    asks = algorithm.prime_points if state.round < algorithm.gradient_rounds else algorithm.points
    if not cohort.probing and asks(state.server):
        raise DataError(
            f"run_round: the cohort has no client to ask for gradients; {type(algorithm).__name__} needs one"
        )
    if not cohort.members:
        raise DataError("run_round: the cohort has no client; give at least one")
    if algorithm.local_steps and not cohort.training:
        raise DataError("run_round: the cohort has no client that trains")
    if algorithm.split and not any(m.probes and not m.steps for m in cohort.members):
        raise DataError("run_round: split cohorts need clients that only send gradients; give them as full=[...]")
    intake, refused = Intake(problem.check), ()
    running = chosen("run_round", backend, devices).start(problem, state.server.x.tree, intake=intake, drift=drift)
    if algorithm.pooled:
        cohort, refused = _pooled(cohort, intake)
    anchor, key = anchor_of(algorithm, state.server), jax.random.key(0) if key is None else key
    work = work_of(algorithm, anchor, state.round, cohort, key)
    state, info = play(running, work, state if memory is None else state._replace(memory=memory), drift=drift)
    return state, info._replace(refused=(*refused, *info.refused))


def _pooled(cohort: Cohort, intake: Intake) -> tuple[Cohort, tuple[ClientId, ...]]:
    """The sound examples of a cohort in the hands of one client, and the clients that were left out."""
    bad = {
        place
        for place, m in enumerate(cohort.members)
        if intake.refuses(m.client, cohort.client_id(m.client), functools.partial(cohort.source.examples, place))
    }
    refused = dict.fromkeys(cohort.client_id(cohort.members[place].client) for place in sorted(bad))
    return cohort.pooled(without=bad), tuple(refused)


def _server_structure(algorithm: Algorithm, x: Any) -> Any:
    """How the server state of an algorithm is built around a model."""
    return jax.tree.structure(jax.eval_shape(lambda: at_round(algorithm, 0).start(x)))
