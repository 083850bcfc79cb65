"""One round on explicit data."""

from __future__ import annotations

import jax

from fedmime.algorithms.algorithm import Algorithm, State
from fedmime.engine import scratch, traced
from fedmime.engine.again import Asked, again, keep
from fedmime.engine.ahead import go_on
from fedmime.engine.cohort import Cohort
from fedmime.engine.intake import Intake
from fedmime.engine.memory import ClientMemory
from fedmime.engine.plan import Layout
from fedmime.engine.round import Info, Problem, assemble, begin, default_layout, placed
from fedmime.errors import ConfigError, DataError
from fedmime.numbers import flag, made, offers, random_key, started


def run_round(
    algorithm: Algorithm,
    problem: Problem,
    state: State,
    cohort: Cohort,
    key: jax.Array | None = None,
    *,
    memory: ClientMemory | None = None,
    devices: int | None = None,
    drift: bool = False,
    layout: Layout | None = None,
) -> tuple[State, Info]:
    """Run one round of an algorithm on a cohort and return the next state and what happened.

    As JAX's own functions do, it may return before the devices have computed the round: whoever looks at the state or
    at what happened waits for them.

    Args:
        key: where the clients' random numbers (dropout) come from; each takes `fold_in(key, round, client, step)`.
        memory: where clients of stateful algorithms keep their values; by default in the state itself.
        devices: how many local devices to use; all by default.
        drift: also measure the mean of ‖y − x‖² over all local steps.
        layout: the padded sizes to share between rounds.
    """
    wide = bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]
    asked = Asked(algorithm, problem, key, devices, drift, wide, scratch.usable())
    plain = layout is None and memory is None
    if plain and isinstance(state, State) and isinstance(cohort, Cohort):
        ready = again(asked, state, cohort)
        if ready is not None:
            return go_on(begin(ready, state))
    made("run_round", "algorithm", algorithm, Algorithm, "come from fm.algorithms")
    offers("run_round", "problem", problem, ("name", "loss", "factors", "chunk", "check"), "come from fm.models")
    made("run_round", "state", state, State, "come from algorithm.init(params)")
    made("run_round", "cohort", cohort, Cohort, "come from fm.Cohort.from_batches")
    if key is not None:
        random_key("run_round", "key", key)
    if memory is not None:
        offers("run_round", "memory", memory, ("read", "write"), "be a client memory")
    flag("run_round", "drift", drift)
    if jax.tree.structure(state.server) != traced.server_structure(algorithm, state.server.x):
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
    options = {"devices": devices, "drift": drift, "layout": layout or default_layout(problem, devices)}
    options["intake"] = None if layout is None else Intake(problem.check)
    ready = assemble(algorithm, problem, state.server, state.round, cohort, key, **options)
    state = placed(state, devices)
    after = go_on(begin(ready, state, memory))
    if plain:  # only now is it known that it can be run
        keep(asked, state, cohort, ready)
    return after
