"""A round: lay a cohort out, run it, report."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh

from fedmime import native
from fedmime.algorithms.algorithm import Algorithm, State
from fedmime.engine import scratch, traced
from fedmime.engine.backends import local
from fedmime.engine.cohort import ClientId, Cohort, client_id
from fedmime.engine.devices import default_lanes, everywhere, mesh, on_all, own_cores, spread
from fedmime.engine.intake import Intake
from fedmime.engine.laid import Data, Laid, laid_before, lay_out
from fedmime.engine.memory import ClientMemory, RamMemory
from fedmime.engine.plan import Layout, Places, Plan
from fedmime.errors import DataError
from fedmime.numbers import at_round
from fedmime.vector import nbytes

LARGEST = 1e3  # how many times 1 + ‖x‖ an update may be long before it counts as exploded
_CACHE_BYTES = 4 << 30  # what the cached gradients of a round may take


class Problem(Data, Protocol):
    """What a round needs of a problem; see `fedmime.models.Problem`."""

    @property
    def name(self) -> str: ...
    @property
    def chunk(self) -> int: ...


class Info:
    """What happened in a round, beside the new state.

    The devices may still be computing the round: looking at what only its end tells waits for them.
    """

    round: int
    primed: bool  # a gradient-only round
    abandoned: bool  # the result was not finite or exploded: the state is the old one
    clients: int  # that trained or were asked for a gradient
    refused: tuple[ClientId, ...]  # clients left out of the mean: their data or reply was not finite, or it exploded
    steps: int
    examples: int
    loss: float  # mean over local steps, before each
    drift: float  # mean of ‖y - x‖² over local steps; NaN where it was not asked for
    gradient_norm: float  # of the cohort's mean full gradient c at x; NaN where the algorithm asks for none
    deviation: float  # ‖e‖ of x^t = x^{t-1} - Kη U(c + e, s); NaN where there is no such e
    update_norm: float

    def __init__(self, end: Callable[[], Mapping[str, Any]], wait: Callable[[], object], **known: Any) -> None:
        vars(self).update(known, _end=end, _until_then=wait)

    def __getattr__(self, name: str) -> Any:
        """One of the figures that only the end of the round tells."""
        if name not in Info.__annotations__:
            raise AttributeError(f"a round's info has no {name!r}")
        told = self._seen("_end")
        vars(self).update(told)
        return told[name]

    def _wait(self) -> None:
        """Until the round has ended. What went wrong in it is raised if nobody has seen it yet."""
        if "_raised" not in vars(self):
            self._seen("_until_then")

    def _seen(self, what: str) -> Any:
        try:
            return vars(self)[what]()
        except Exception:
            vars(self)["_raised"] = True
            raise

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a round's info says what happened: {name} cannot be set")

    def _asdict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in Info.__annotations__}

    __getstate__ = _asdict

    def __repr__(self) -> str:
        return f"Info({', '.join(f'{name}={value!r}' for name, value in self._asdict().items())})"


class Ready(NamedTuple):
    """A cohort laid out on the devices, before the state it will run from is known."""

    algorithm: Algorithm  # its numbers are on the devices
    problem: Problem
    round: int
    laid: Laid
    common: local.Common
    options: local.Options
    scratch: scratch.Kind | None  # of the tables that the round is to be lent


class Underway(NamedTuple):
    """A round that the devices compute."""

    ready: Ready
    state: State  # after it, without what its clients will have kept
    figures: jax.Array | None  # its report; None where too few clients are left for a round
    outcome: local.Outcome
    begun: int = 0  # devices that are at work, since the process began, once all of its own are; 0 if they do not tell


def default_layout(problem: Problem, devices: int | None) -> Layout:
    """The layout that suits this machine and problem."""
    lanes = default_lanes()
    return Layout(mesh(devices).size, problem.chunk, lanes, masked=lanes > 1)


def assemble(
    algorithm: Algorithm,
    problem: Problem,
    server: Any,
    round_number: int,
    cohort: Cohort,
    key: jax.Array | None,
    *,
    devices: int | None,
    drift: bool,
    layout: Layout,
    intake: Intake | None,
    largest: float = LARGEST,
    donate: bool = False,
) -> Ready:
    """Check a cohort and lay it out on the devices. Needs no state, so it can go on while another round computes.

    Of the server only the shapes matter. Without an `intake` the layout is kept with the cohort, for the next round on
    it. `donate`: the state that the round will run from may be used up by it.
    """
    if cohort.members:  # a round to which nobody came is abandoned, not wrong
        _check(algorithm, cohort)
    on = mesh(devices)
    given = (algorithm, problem, server.x.tree, cohort, layout)
    laid = laid_before(*given) if intake is None else lay_out(*given, intake)
    cohort, plans = laid.cohort, laid.plans
    control = _control(problem, nbytes(server.x), cohort, plans)
    prime = round_number < algorithm.gradient_rounds
    masked = max((plan.longest for plan in plans), default=1) if layout.masked else None
    widths = getattr(problem, "widths", 1) if masked is None and control != "step factors" else 1
    common_clients = max((plan.common for plan in plans), default=0)
    of_round = (prime, drift, laid.random, layout.lanes, masked, widths, common_clients, control, donate)
    options = local.Options(on, layout.chunk, *of_round)
    recipe = _recipe(algorithm, round_number, on)
    draws = drawn(recipe, round_number, cohort, key, options)
    source = _spare_key(on) if key is None or not laid.random else jax.device_put(_own(key), everywhere(on))
    population, largest = on_all((float(cohort.population), largest), on)
    common = local.Common(draws, source, population, largest)
    lent = _lent(recipe, problem, server, cohort, plans, options)
    return Ready(recipe, problem, round_number, laid, common, options, lent)


def with_numbers(ready: Ready, algorithm: Algorithm) -> Ready:
    """The same round with the numbers of another algorithm of its kind."""
    return ready._replace(algorithm=_recipe(algorithm, ready.round, ready.options.mesh))


def _recipe(algorithm: Algorithm, round_number: int, on: Mesh) -> Algorithm:
    return on_all(at_round(algorithm, round_number), on)


def drawn(
    algorithm: Algorithm, round_number: int, cohort: Cohort, key: jax.Array | None, options: local.Options
) -> Any:
    """A round's number and what is drawn for the server, where its program looks at them."""
    if not local.counts_rounds(algorithm, options):
        return _spare_draws(options.mesh)
    random = np.random.default_rng([*(_spare_entropy() if key is None else _entropy(key)), round_number])
    pick = int(random.integers(max(cohort.steps, 1)))
    return local.packed(round_number, pick, random.random())


@functools.cache
def _spare_draws(on: Mesh) -> jax.Array:
    with jax.ensure_compile_time_eval():
        return jax.device_put(local.packed(0, 0, 0.0), everywhere(on))


@functools.cache
def _spare_key(on: Mesh) -> jax.Array:
    """Where nobody gave a key, and where no loss draws random numbers: what is on the devices is not sent again."""
    with jax.ensure_compile_time_eval():  # also if somebody traces a round: the key stays
        return jax.device_put(jax.random.key(0), everywhere(on))


@functools.cache
def _spare_entropy() -> list[int]:
    with jax.ensure_compile_time_eval():
        return _entropy(jax.random.key(0))


def _own(key: Any) -> Any:
    """A key that nobody writes over while a round goes on."""
    return key if isinstance(key, jax.Array) else np.array(key)


def _entropy(key: jax.Array) -> list[int]:
    return np.asarray(jax.random.key_data(key)).tolist()


def placed(state: State, devices: int | None) -> State:
    """The state on the devices a round runs on."""
    place = everywhere(mesh(devices))
    if all(getattr(leaf, "sharding", None) == place for leaf in jax.tree.leaves(state.server)):
        return state
    return state._replace(server=jax.device_put(state.server, place))


def owned(state: State, devices: int | None) -> State:
    """A copy on the devices that rounds may use up."""
    return state._replace(server=jax.tree.map(jnp.copy, placed(state, devices).server))


def shapes(server: Any) -> Any:
    """What `assemble` needs of a server, which outlives its arrays."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), server)


def run_ready(
    ready: Ready,
    state: State,
    memory: ClientMemory | None = None,
    meanwhile: Callable[[], object] | None = None,
) -> tuple[State, Info]:
    """Run a round that was laid out, from the state before it, which is on the devices.

    `meanwhile`: what this thread does while the devices compute.
    """
    underway = begin(ready, state, memory)
    if meanwhile is not None:
        with beside(ready):
            meanwhile()
    return end(underway)


def begin(ready: Ready, state: State, memory: ClientMemory | None = None) -> Underway:
    """Give a round to the devices, without waiting for them or for the round that gives the state."""
    blank = ready.algorithm.remember(state.server.x)
    memory = state.memory if memory is None else memory
    if memory is None and jax.tree.leaves(blank):
        memory = RamMemory(jax.tree.map(np.asarray, blank))
    cohort = ready.laid.cohort
    asked = ready.algorithm.prime_points if ready.options.prime else ready.algorithm.points
    missing = (_trains(ready) and not cohort.training) or (asked(state.server) and not cohort.probing)
    if missing or not cohort.members:  # too few are left
        return Underway(ready, State(ready.round + 1, state.server, memory), None, local.Outcome([], []))
    waves = [
        local.Wave(tables, () if memory is None else _kept(memory, plan, blank, ready.options))
        for tables, plan in zip(ready.laid.tables, ready.laid.plans, strict=True)
    ]
    lent = () if ready.scratch is None else scratch.take(ready.scratch)
    given = (ready.algorithm, ready.problem, state.server, waves, ready.common, ready.options, lent)
    begun = native.at_work() + ready.options.mesh.size if local.tells_when_begun(len(waves), ready.options) else 0
    server, figures, outcome = local.run(*given)
    if ready.scratch is not None and not isinstance(figures, Tracer):
        scratch.keep(ready.scratch, outcome.scratch)  # for the next one, which will wait for it
    return Underway(ready, State(ready.round + 1, server, memory), figures, outcome, begun)


def end(underway: Underway) -> tuple[State, Info]:
    """Wait for a round: the state after it, and what happened."""
    ready, state, figures, outcome, _ = underway
    told = info(underway)
    if figures is None:
        return state, told
    abandoned = told.abandoned
    if state.memory is not None and _trains(ready) and not abandoned:
        memory, refused, name = state.memory, set(told.refused), ready.laid.cohort.client_id
        for plan, kept in zip(ready.laid.plans, outcome.kept, strict=True):
            good = {client: slot for client, slot in plan.places.slots.items() if name(client) not in refused}
            memory = memory.write(list(good), _values(jax.device_get(kept), good))
        state = state._replace(memory=memory)
    return state, told


def ends_alone(underway: Underway) -> bool:
    """Whether nothing has to be done at the end of a round, and devices may be given other programs before it."""
    figures, alone = underway.figures, underway.ready.options.mesh.size == 1 or jax.default_backend() != "cpu"
    told = isinstance(figures, jax.Array) and not isinstance(figures, Tracer)
    return told and underway.state.memory is None and (alone or underway.begun > 0)


def wait_for_devices(underway: Underway) -> None:
    """Until all devices that tell are at work on a round, or done with it.

    XLA has as many threads as devices, and lets only so many programs wait for their turn. If the threads were busy
    with others, a device that has begun would wait for one that never does.
    """
    figures: Any = underway.figures
    while native.at_work(underway.begun) < underway.begun and not figures.is_ready():
        pass


def beside(ready: Ready) -> contextlib.AbstractContextManager[None]:
    """While this thread works and the devices compute such a round."""
    return native.beside(int(own_cores(ready.options.mesh.size).max()) + 1)


def _trains(ready: Ready) -> bool:
    return ready.algorithm.local_steps and not ready.options.prime


def info(underway: Underway) -> Info:
    """What happens in a round; without figures it was abandoned before it began. It does not keep the cohort."""
    ready, figures, refused = underway.ready, underway.figures, underway.outcome.refused
    places = [plan.places for plan in ready.laid.plans] if _trains(ready) else []
    given = (figures, ready.laid.refused, places, refused, ready.laid.cohort.ids, ready.options.drift)
    return Info(
        functools.partial(_at_end, _told, *given),
        functools.partial(_at_end, _ended, figures),
        round=ready.round,
        primed=ready.options.prime,
        clients=len(ready.laid.cohort.members),
        steps=ready.laid.cohort.steps if figures is not None and _trains(ready) else 0,
        examples=ready.laid.cohort.examples,
    )


def _at_end(function: Callable[..., Any], *given: Any) -> Any:
    """What a function gives. After a round that failed on the devices, the next would fail with the memory it had."""
    try:
        return function(*given)
    except Exception:
        scratch.release()
        raise


def _ended(figures: jax.Array | None) -> None:
    """Wait for a round, without looking at what it tells: that takes a tenth of a millisecond."""
    if figures is not None:
        figures.block_until_ready()


def _told(
    figures: jax.Array | None,
    before: tuple[int, ...],
    places: Sequence[Places],
    refusals: Sequence[jax.Array],
    ids: Sequence[str] | None,
    drift: bool,
) -> dict[str, Any]:
    """What only the end of a round tells: its figures, and whom it refused, with those who were `before` it."""
    if figures is None:
        none = dict.fromkeys(("loss", "drift", "gradient_norm", "deviation"), math.nan)
        names = tuple(client_id(ids, client) for client in before)
        return {"abandoned": True, "refused": names, "update_norm": 0.0, **none}
    report, refused = local.Report(*np.asarray(figures).tolist()), list(before)
    if places and report.refused:
        for part, each in zip(places, jax.device_get(refusals), strict=True):
            refused += [client for client, place in part.slots.items() if np.any(each[place])]
    return {
        "abandoned": not report.accepted,
        "refused": tuple(client_id(ids, client) for client in refused),
        "loss": report.loss,
        "drift": report.drift if drift else math.nan,
        "gradient_norm": report.gradient_norm,
        "deviation": report.deviation,
        "update_norm": report.update_norm,
    }


def _control(problem: Problem, model_bytes: int, cohort: Cohort, plans: list[Plan]) -> str:
    """How local steps find their gradient at the anchor; what is possible depends on the cohort, not on the devices."""
    if len(plans) > 1 or not all(m.probes for m in cohort.training):
        return "twice"  # the full gradient is not at hand for the examples of the clients that train
    if problem.factors is not None and problem.factors.record_batch is None:
        return "factors"
    once = cohort.takes_each_once and all(m.steps for m in cohort.probing)
    steps = cohort.steps
    if problem.factors is not None:
        full = steps * cohort.batch_size <= 2 * sum(m.size for m in cohort.training)  # little of a step is padding
        return "step factors" if once and full else "factors"
    return "cache" if once and model_bytes * steps <= _CACHE_BYTES else "twice"


def _lent(
    algorithm: Algorithm, problem: Problem, server: Any, cohort: Cohort, plans: list[Plan], options: local.Options
) -> scratch.Kind | None:
    """The tables of a round that keeps something of its full gradient, where their memory is worth keeping."""
    if options.control == "twice" or options.lanes > 1 or options.prime or not cohort.members or not scratch.usable():
        return None
    if not algorithm.local_steps or not traced.anchored(algorithm, server):
        return None
    sample, sizes = cohort.members[0].data, plans[0].tables.sizes
    shapes = traced.lent_tables(problem, options.control, server.x.tree, sample, sizes, options.chunk)
    kind = scratch.kind_of(shapes, options.mesh)
    return kind if kind.nbytes <= scratch.LARGEST else None


def _kept(memory: ClientMemory, plan: Plan, blank: Any, options: local.Options) -> Any:
    """What the training clients kept, at the places the plan gives them."""
    shape = (len(plan.tables.whole), plan.tables.sizes.clients)
    table = jax.tree.map(lambda leaf: np.zeros((*shape, *leaf.shape), leaf.dtype), blank)
    for slot, value in zip(plan.places.slots.values(), memory.read(list(plan.places.slots)), strict=True):
        jax.tree.map(lambda all_, leaf, slot=slot: all_.__setitem__(slot, leaf), table, value)
    return jax.device_put(table, spread(options.mesh))


def _values(kept: Any, slots: Mapping[int, tuple[Any, int]]) -> list[Any]:
    return [jax.tree.map(lambda leaf, slot=slot: leaf[slot], kept) for slot in slots.values()]


def _check(algorithm: Algorithm, cohort: Cohort) -> None:
    if algorithm.local_steps and not cohort.training:
        raise DataError("run_round: the cohort has no client that trains")
    if algorithm.split and not any(m.probes and not m.steps for m in cohort.members):
        raise DataError("run_round: split cohorts need clients that only send gradients; give them as full=[...]")
