"""One round on explicit data."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Var

from fedmime.algorithms.algorithm import Algorithm, State
from fedmime.engine.backends.local import Options, Outcome, Work, compiled_round
from fedmime.engine.cohort import Cohort
from fedmime.engine.devices import everywhere, mesh, spread
from fedmime.engine.memory import ClientMemory, RamMemory
from fedmime.engine.plan import Layout, Plan, make_plan
from fedmime.errors import ConfigError, DataError
from fedmime.numbers import at_round


class Problem(Protocol):
    """What a round needs of a problem; see `fedmime.models.Problem`."""

    @property
    def name(self) -> str: ...
    @property
    def loss(self) -> Callable[[Any, Any, jax.Array], jax.Array]: ...
    @property
    def check(self) -> Callable[[Mapping[str, np.ndarray]], None]: ...


class Info(NamedTuple):
    """What happened in a round, beside the new state."""

    round: int
    primed: bool  # a gradient-only round
    abandoned: bool  # the result was not finite: the state is the old one
    clients: int  # that trained or were asked for a gradient
    refused: tuple[int, ...]  # clients whose reply was not finite, left out of the mean
    steps: int
    examples: int
    loss: float  # mean over local steps, before each
    drift: float  # mean of ‖y - x‖² over local steps, where asked for
    gradient_norm: float  # of the cohort's mean full gradient at x, where the algorithm asks for it
    update_norm: float


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

    Args:
        key: where the clients' random numbers (dropout) come from; each takes `fold_in(key, round, client, step)`.
        memory: where clients of stateful algorithms keep their values; by default in the state itself.
        devices: how many local devices to use; all by default.
        drift: also measure the mean of ‖y − x‖² over all local steps.
        layout: the padded sizes to share between rounds.
    """
    _check(algorithm, problem, state, cohort)
    if algorithm.pooled:
        cohort = cohort.pooled()
    prepared = prepare(
        algorithm, problem, state, cohort, key, memory=memory, devices=devices, drift=drift, layout=layout
    )
    return prepared.finish(prepared.start())


class Prepared(NamedTuple):
    """A round whose tables are ready: `start` begins to compute it, `finish` waits for it."""

    algorithm: Algorithm
    problem: Problem
    state: State
    cohort: Cohort
    plan: Plan
    work: Work
    options: Options
    memory: ClientMemory | None

    def start(self) -> tuple[Any, Outcome]:
        """Hand the round to the devices."""
        server = jax.device_put(self.state.server, everywhere(self.options.mesh))
        return compiled_round(self.algorithm, self.problem, server, self.work, self.options)

    def finish(self, result: tuple[Any, Outcome]) -> tuple[State, Info]:
        """The next state and the round's report."""
        server, outcome = result
        training = self.cohort.training
        refused = np.asarray(outcome.refused)
        dropped = tuple(m.index for m, slot in zip(training, self.plan.slots, strict=True) if refused[slot])
        memory = self.memory
        if memory is not None and not self.options.prime and bool(outcome.finite):
            kept = jax.tree.map(np.asarray, outcome.kept)
            values = [jax.tree.map(lambda leaf, slot=slot: leaf[slot], kept) for slot in self.plan.slots]
            memory = memory.write([m.index for m in training], values)
        info = Info(
            round=self.state.round,
            primed=self.options.prime,
            abandoned=not bool(outcome.finite),
            clients=len(self.cohort.members),
            refused=() if self.options.prime else dropped,
            steps=0 if self.options.prime or not self.algorithm.local_steps else sum(m.steps for m in training),
            examples=sum(m.size for m in self.cohort.members),
            loss=float(outcome.loss),
            drift=float(outcome.drift),
            gradient_norm=float(outcome.gradient_norm),
            update_norm=float(outcome.update_norm),
        )
        return State(self.state.round + 1, server, memory), info


def prepare(
    algorithm: Algorithm,
    problem: Problem,
    state: State,
    cohort: Cohort,
    key: jax.Array | None,
    *,
    memory: ClientMemory | None,
    devices: int | None,
    drift: bool,
    layout: Layout | None,
) -> Prepared:
    """Lay a round out on the devices."""
    on = mesh(devices)
    layout = layout or Layout(on.size, getattr(problem, "chunk", 256))
    key = jax.random.key(0) if key is None else key
    random = np.random.default_rng([*np.asarray(jax.random.key_data(key)).tolist(), state.round])
    pick = int(random.integers(max(sum(m.steps for m in cohort.training), 1)))
    prime = state.round < algorithm.gradient_rounds
    by_client = uses_key(problem, state.server.x.tree, cohort)
    plan = make_plan(cohort, layout, split=algorithm.split, by_client=by_client, pick=pick)
    memory = memory or state.memory
    blank = algorithm.remember(state.server.x)
    if memory is None and jax.tree.leaves(blank):
        memory = RamMemory(jax.tree.map(np.asarray, blank))
    tables = jax.device_put(plan.tables, spread(on))
    kept = jax.device_put(_gather(memory, cohort, plan, blank), spread(on)) if memory is not None else ()
    work = Work(tables, kept, float(cohort.population), state.round, random.random(), key)
    options = Options(on, layout.chunk, prime, drift)
    return Prepared(at_round(algorithm, state.round), problem, state, cohort, plan, work, options, memory)


def _gather(memory: ClientMemory, cohort: Cohort, plan: Plan, blank: Any) -> Any:
    """What the training clients kept, at the places the plan gives them."""
    shape = plan.tables.clients.steps.shape
    table = jax.tree.map(lambda leaf: np.zeros((*shape, *leaf.shape), leaf.dtype), blank)
    values = memory.read([m.index for m in cohort.training])
    for slot, value in zip(plan.slots, values, strict=True):
        jax.tree.map(lambda all_, leaf, slot=slot: all_.__setitem__(slot, leaf), table, value)
    return table


def _check(algorithm: Algorithm, problem: Problem, state: State, cohort: Cohort) -> None:
    if not isinstance(algorithm, Algorithm):
        raise ConfigError(f"run_round: algorithm must come from fm.algorithms, got {algorithm!r}")
    if not isinstance(state, State):
        raise ConfigError(f"run_round: state must come from algorithm.init(params), got {type(state).__name__}")
    if jax.tree.structure(state.server) != _server_structure(*_hashable((algorithm, state.server.x))):
        raise ConfigError(
            f"run_round: the state is not one of {type(algorithm).__name__}; start from algorithm.init(params)"
        )
    if algorithm.local_steps and not cohort.training:
        raise DataError("run_round: the cohort has no client that trains")
    if algorithm.split and not any(m.probes and not m.steps for m in cohort.members):
        raise DataError("run_round: split cohorts need clients that only send gradients; give them as full=[...]")
    for position, member in enumerate(cohort.members):
        try:
            problem.check(member.data)
        except DataError as error:
            raise DataError(f"client {position}: {error}") from None


def uses_key(problem: Problem, params: Any, cohort: Cohort) -> bool:
    """Whether the loss draws random numbers, found out by tracing it once per kind of batch."""
    row = {
        name: jax.ShapeDtypeStruct((1, *a.shape[1:]), jnp.result_type(a)) for name, a in cohort.members[0].data.items()
    }
    return _uses_key(problem.loss, *_hashable((params, row)))


@functools.lru_cache(maxsize=64)
def _uses_key(loss: Callable[..., Any], tree: Any, leaves: tuple[Any, ...]) -> bool:
    params, batch = _abstract(tree, leaves)
    jaxpr = jax.make_jaxpr(loss)(params, batch, jax.random.key(0)).jaxpr
    key = jaxpr.invars[-1]
    return any(v is key for equation in jaxpr.eqns for v in equation.invars if isinstance(v, Var))


@functools.lru_cache(maxsize=64)
def _server_structure(tree: Any, leaves: tuple[Any, ...]) -> Any:
    """How the server state of an algorithm is built around a model."""
    return jax.tree.structure(jax.eval_shape(lambda pair: pair[0].start(pair[1]), _abstract(tree, leaves)))


def _hashable(tree: Any) -> tuple[Any, tuple[Any, ...]]:
    """A pytree's structure, shapes and dtypes; schedules among its leaves stand for numbers."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple(
        (jnp.shape(a), jnp.result_type(a)) if not callable(a) else ((), jnp.result_type(float)) for a in leaves
    )


def _abstract(tree: Any, leaves: tuple[Any, ...]) -> Any:
    return jax.tree.unflatten(tree, [jax.ShapeDtypeStruct(*leaf) for leaf in leaves])
