"""One process: a round as one compiled call, clients spread over the local devices.

Each device works through its clients one after another with loops whose trip counts are arguments, so the work is
that of the real examples and any mix of client sizes runs the same program. A round has three parts — full gradients,
local steps, server — compiled together; a cohort too large to be on the devices at once goes through the first two in
waves, each part then compiled on its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedmime import native
from fedmime.algorithms.algorithm import Algorithm, Replies, Reply, Server
from fedmime.engine.backends.lanes import Options, Wave, add_up, apart, on_devices
from fedmime.engine.client import LaneClient, Watch
from fedmime.engine.devices import EVERYWHERE, SPREAD
from fedmime.engine.gradients import (
    Batches,
    LossProblem,
    Source,
    Twice,
    full_gradient,
    full_gradient_by_steps,
    full_gradient_with_factors,
    full_gradient_with_step_factors,
    kept_tables,
    loop,
    unfilled,
)
from fedmime.engine.plan import Tables
from fedmime.vector import Vector, distance, finite, norm, put, where

Gradients = tuple[Vector, ...]


class Common(NamedTuple):
    """What a compiled round takes beside the server's state and the clients' data."""

    draws: Any  # a round's number, and what is drawn for the server; see `packed` and `counts_rounds`
    key: jax.Array  # of the run; the round's own is folded in where the loss draws random numbers
    population: Any
    largest: Any  # how many times 1 + ‖x‖ a reply or an update may be long

    @property
    def round(self) -> jax.Array:
        return self.draws[0]

    @property
    def pick(self) -> jax.Array:
        """Which of the cohort's local steps, counted over its clients in order, the server drew."""
        return self.draws[1]

    @property
    def coin(self) -> jax.Array:
        """A uniform random number."""
        return lax.bitcast_convert_type(self.draws[2], jnp.float32)

    def round_key(self, options: Options) -> jax.Array:
        """Where the clients' random numbers of this round come from, if there are any."""
        return jax.random.fold_in(self.key, self.round) if options.random else self.key


def packed(round_number: int, pick: int, coin: float) -> np.ndarray:
    """Numbers of a round as one array, which is sent faster than three."""
    return np.asarray([round_number, pick, np.float32(coin).view(np.int32)], np.int32)


def counts_rounds(algorithm: Algorithm, options: Options) -> bool:
    """Whether a round's program looks at `Common.draws`; one that does not is given the same array every time."""
    return algorithm.draws or options.random or options.prime


class Figures(NamedTuple):
    """Numbers that clients add up beside their messages."""

    weight: Any
    loss: Any
    drift: Any
    steps: Any
    weighted_steps: Any
    refused: Any  # how many


class Totals(NamedTuple):
    """Sums over clients; or, as vectors, what one of them adds."""

    send: Any
    add: Any
    figures: Any  # as one array: every operation on small arrays costs a program about the same, whatever their size


class Report(NamedTuple):
    """What a compiled round tells beside the server's state; it leaves the devices as one array."""

    accepted: Any  # whether the result was finite and not too far; if not, the state is the old one
    refused: Any  # how many clients' replies were
    loss: Any
    drift: Any
    gradient_norm: Any
    deviation: Any
    update_norm: Any


class Outcome(NamedTuple):
    """What became of the clients: [devices, clients, ...] for each wave; and of the memory that was lent."""

    kept: Sequence[Any]
    refused: Sequence[jax.Array]
    scratch: Any = ()


def run(
    algorithm: Algorithm,
    problem: LossProblem,
    server: Server,
    waves: Sequence[Wave],
    common: Common,
    options: Options,
    scratch: Any = (),
) -> tuple[Server, jax.Array, Outcome]:
    """Run a round, whose report comes as an array of its fields.

    The algorithm holds this round's numbers as leaves, so other numbers need no new program. A round of one wave can
    be lent tables for what it keeps of its full gradient, which are then gone.
    """
    if len(waves) == 1:
        given = (algorithm, problem, server, waves[0], scratch, common, options)
        server, report, keeps, refuses, scratch = _whole_round(*given)
        return server, report, Outcome([keeps], [refuses], scratch)
    h: Gradients = ()
    for wave in waves:
        part = _gradient_wave(algorithm, problem, server, wave, common, options)
        h = tuple(a + b for a, b in zip(h, part, strict=True)) if h else part
    totals, kept, refused = None, [], []
    if not options.prime and algorithm.local_steps:
        for wave in waves:
            part, keeps, refuses = _training_wave(algorithm, problem, server, h, wave, common, options)
            totals = part if totals is None else jax.tree.map(jnp.add, totals, part)
            kept.append(keeps)
            refused.append(refuses)
    server, report = _server_step(algorithm, server, h, totals, common, options)
    return server, report, Outcome(kept, refused)


def tells_when_begun(waves: int, options: Options) -> bool:
    """Whether each device of a round is `native.at_work` from its beginning on."""
    return waves == 1 and options.masked is None and options.mesh.size > 1 and native.usable()


def _compiled(phase: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile a part once for every problem and options; a trace is counted.

    Only the part that ends a round may take over the memory of the server's state: the others read it again.
    """

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def traced(*args: Any) -> Any:
            count_trace("prime" if args[-1].prime else phase)
            return function(*args)

        names = [name for name in function.__annotations__ if name != "return"]
        static = [i for i, name in enumerate(names) if name in ("problem", "options")]
        lent = [i for i, name in enumerate(names) if name == "scratch"]
        given = [names.index("server")] if phase in ("round", "server") else []
        kept, donated = (
            jax.jit(traced, static_argnums=static, donate_argnums=[*lent, *places]) for places in ([], given)
        )

        @functools.wraps(function)
        def call(*args: Any) -> Any:
            return (donated if args[-1].donate else kept)(*args)

        return call

    return wrap


@_compiled("round")
def _whole_round(
    algorithm: Algorithm,
    problem: LossProblem,
    server: Server,
    wave: Wave,
    scratch: Any,
    common: Common,
    options: Options,
) -> Any:
    def inside(replicated: Any, tables: Tables, kept: Any, lent: Any) -> Any:
        algorithm, server, common = replicated
        if tells_when_begun(1, options):
            tables = tables._replace(core=native.begun(jnp.asarray(tables.core)))
        key = common.round_key(options)
        h, source = _full_gradients(algorithm, problem, server, tables, key, options, lent)
        totals, new, refused = None, kept, jnp.zeros(tables.clients.steps.shape, bool)
        if not options.prime and algorithm.local_steps:
            given = (algorithm, source, server, h, tables, kept, key, common, options)
            totals, new, refused = apart(options, server.x, functools.partial(_train, *given))
        server, report = _conclude(algorithm, server, h, totals, common, options)
        lent = getattr(source, "kept", lent) if jax.tree.leaves(lent) else ()
        return server, _figures(report), where(report.accepted, new, kept), refused, lent

    out = (EVERYWHERE, EVERYWHERE, SPREAD, SPREAD, SPREAD)
    return on_devices(options, inside, (algorithm, server, common), wave, out, (scratch,))


@_compiled("gradients")
def _gradient_wave(
    algorithm: Algorithm, problem: LossProblem, server: Server, wave: Wave, common: Common, options: Options
) -> Gradients:
    def inside(replicated: Any, tables: Tables, kept: Any) -> Any:
        algorithm, server, common = replicated
        key = common.round_key(options)
        return (_full_gradients(algorithm, problem, server, tables, key, options)[0],)

    return on_devices(options, inside, (algorithm, server, common), wave, (EVERYWHERE,))[0]


@_compiled("training")
def _training_wave(
    algorithm: Algorithm,
    problem: LossProblem,
    server: Server,
    h: Gradients,
    wave: Wave,
    common: Common,
    options: Options,
) -> Any:
    def inside(replicated: Any, tables: Tables, kept: Any) -> Any:
        algorithm, server, h, common = replicated
        key = common.round_key(options)
        anchor = algorithm.anchor(algorithm.broadcast(server, h))
        return _train(algorithm, Twice(problem, anchor), server, h, tables, kept, key, common, options)

    return on_devices(options, inside, (algorithm, server, h, common), wave, (EVERYWHERE, SPREAD, SPREAD))


@_compiled("server")
def _server_step(
    algorithm: Algorithm, server: Server, h: Gradients, totals: Totals | None, common: Common, options: Options
) -> Any:
    server, report = _conclude(algorithm, server, h, totals, common, options)
    return server, _figures(report)


def _full_gradients(
    algorithm: Algorithm,
    problem: LossProblem,
    server: Server,
    tables: Tables,
    key: jax.Array,
    options: Options,
    blank: Any = (),
) -> tuple[Gradients, Source]:
    """The mean full gradient at every point the algorithm names, and the source of gradients for local steps.

    What that source needs is kept in `blank` tables, or where none are lent in new ones.
    """
    points = algorithm.prime_points(server) if options.prime else algorithm.points(server)
    anchor = None
    if algorithm.local_steps and not options.prime:
        anchor = algorithm.anchor(algorithm.broadcast(server, points))  # only to see which point it is
    source: Source = Twice(problem, anchor)
    h = []
    for point in points:
        anchored, given = anchor is point, (problem, point, tables)
        if anchored and options.control != "twice" and not jax.tree.leaves(blank):
            row = {name: jax.typeof(column[0]) for name, column in tables.pool.items()}
            blank = unfilled(kept_tables(problem, options.control, point.tree, row, tables.sizes(), options.chunk))
        if anchored and options.control == "factors":
            part, source = full_gradient_with_factors(*given, blank, key, options.chunk, options.masked, options.lanes)
        elif anchored and options.control == "step factors":
            part, source = full_gradient_with_step_factors(*given, blank, key, options.masked)
        elif anchored and options.control == "cache":
            part, source = full_gradient_by_steps(*given, blank, key, options.masked, options.widths)
        elif anchor is not None and options.control == "cache" and options.random:
            # gradients at all points draw the random numbers of the local steps, so that they can be compared
            part, _ = full_gradient_by_steps(*given, (), key, options.masked, options.widths)
        else:
            part = full_gradient(*given, key, options.chunk, options.masked)
        h.append(part)
    return add_up(tuple(h), options), source


def _train(
    algorithm: Algorithm,
    source: Source,
    server: Server,
    h: Gradients,
    tables: Tables,
    kept: Any,
    key: jax.Array,
    common: Common,
    options: Options,
) -> tuple[Totals, Any, jax.Array]:
    """Local steps of the device's clients, one client after another, then the sums over all devices."""
    message = algorithm.broadcast(server, h)
    dtype = jax.tree.leaves(server.x)[0].dtype
    bound = _bound(server, common.largest)
    exact = jnp.promote_types(dtype, jnp.float32)  # enough for whole numbers

    def local(i: jax.Array) -> tuple[Reply, Watch]:
        own = jax.random.fold_in(key, tables.clients.index[i])
        batches = Batches(tables, own, tables.clients.first[i], server.x, options.widths)
        own_kept, steps = jax.tree.map(lambda leaf: leaf[i], kept), tables.clients.steps[i]
        pick = None
        if algorithm.draws:
            drawn = common.pick - tables.clients.before[i]
            pick = jnp.where((drawn >= 0) & (drawn < steps), drawn, -1)
        client = LaneClient(source, batches, own_kept, steps, pick, options.drift, options.masked)
        reply = algorithm.local(message, client)
        return jax.tree.map(jnp.asarray, reply), client.watch or Watch.zero(dtype)

    def answer(i: jax.Array) -> tuple[Totals, Any, jax.Array]:
        """What a client adds to the sums, as vectors, what it keeps, and whether that is good."""
        reply, watch = local(i)
        length = norm(Vector(reply.send))
        good = jnp.isfinite(length) & (length <= bound) & finite((reply.add, reply.keep))
        w, steps = tables.clients.weight[i].astype(exact), tables.clients.steps[i]
        figures = Figures(w, watch.loss, watch.drift, steps, w * steps, 0)
        refused = Figures(0, 0, 0, 0, 0, 1)
        each = Totals(
            send=jnp.where(good, w, 0).astype(dtype) * Vector.pending(reply.send),
            add=good.astype(dtype) * Vector.pending(reply.add),
            figures=Vector.pending(jnp.where(good, _stacked(figures, exact), _stacked(refused, exact))),
        )
        return each, reply.keep, good

    def fold(i: jax.Array, carry: tuple[Totals, Any, jax.Array]) -> tuple[Totals, Any, jax.Array]:
        totals, new, refused = carry
        each, keep, good = answer(i)
        new = jax.tree.map(lambda all_, leaf: all_.at[i].set(jnp.where(good, leaf, all_[i])), new, keep)
        return _plus(totals, each), new, refused.at[i].set(~good)

    shapes = jax.eval_shape(local, jnp.zeros((), jnp.int32))[0]
    jax.tree.map(lambda *_: None, kept, shapes.keep)  # what is kept is like what was kept
    blank = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    totals = Totals(blank.send, blank.add, jnp.zeros(len(Figures._fields), exact))
    refused = jnp.zeros(tables.clients.steps.shape, bool)
    if options.common:
        totals, refused = _train_in_common(answer, totals, refused, tables, h, options)
        return totals, kept, refused
    limit = options.masked and tables.clients.steps.shape[0]
    totals, new, refused = loop(tables.client_count, limit, fold, (totals, kept, refused), tables.core)
    return add_up(totals, options, after=h), new, refused


def _train_in_common(
    answer: Callable[[jax.Array], tuple[Totals, Any, jax.Array]],
    totals: Totals,
    refused: jax.Array,
    tables: Tables,
    h: Gradients,
    options: Options,
) -> tuple[Totals, jax.Array]:
    """A device's own clients, then those that any device may train, as long as there are any.

    What each of these replies gets a row for itself, and rows are added up in their order: who trained them does not
    change a bit.
    """
    most = options.common

    def asked(trip: jax.Array, after: jax.Array) -> jax.Array:
        trip = native.settled(trip, tables.core)
        return native.next_piece(trip, tables.client_count, most, tables.common_count, options.mesh.size, after)

    def train(carry: Any) -> Any:
        trip, i, totals, refused, filled, rows = carry
        each, _, good = answer(i)
        own = i >= most
        row = jnp.where(own, most, i)  # there is none for a client of the device's own
        totals = _plus(totals, each, own.astype(totals.figures.dtype))
        rows = Totals(*(put(table, row, part) for table, part in zip(rows, each, strict=True)))
        filled = filled.at[row].set(True, mode="drop")
        return trip + 1, asked(trip + 1, totals.figures), totals, refused.at[i].set(~good), filled, rows

    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((most, *leaf.shape), leaf.dtype), totals)
    begun = (jnp.zeros((), jnp.int32), asked(jnp.zeros((), jnp.int32), totals.figures))
    start = (*begun, totals, refused, jnp.zeros(most, bool), unfilled(shapes))
    _, _, totals, refused, filled, rows = lax.while_loop(lambda carry: carry[1] >= 0, train, start)
    return add_up(totals, options, h, filled, rows), refused


def _conclude(
    algorithm: Algorithm, server: Server, h: Gradients, totals: Totals | None, common: Common, options: Options
) -> tuple[Server, Report]:
    """The server's part. A result that is not finite, or leads too far, leaves the state as it was."""
    zero = jnp.zeros((), jax.tree.leaves(server.x)[0].dtype)
    coin = common.coin if algorithm.draws else None
    replies, loss, drift, accepted = Replies((), (), common.population, zero, zero, coin), zero, zero, True
    deviation, refused = None, zero
    if totals is not None:
        sums = Figures(*totals.figures.astype(zero.dtype))
        mean = jax.tree.map(lambda leaf: leaf / sums.weight, totals.send)
        replies = Replies(mean, totals.add, common.population, sums.steps, sums.weighted_steps / sums.weight, coin)
        deviation = algorithm.deviation(server, h, replies)
        loss, drift = sums.loss / sums.steps, sums.drift / sums.steps
        accepted, refused = sums.steps > 0, sums.refused
    new = algorithm.prime(server, h, common.round) if options.prime else algorithm.server(server, h, replies)
    moved, none = distance(new.x, server.x), jnp.full_like(zero, jnp.nan)
    accepted = finite(new) & (moved <= _bound(server, common.largest)) & accepted
    lengths = (norm(h[0]) if h else none, none if deviation is None else norm(deviation), jnp.where(accepted, moved, 0))
    return where(accepted, new, server), Report(accepted, refused, loss, drift, *lengths)


def _plus(totals: Totals, each: Totals, counts: Any = 1.0) -> Totals:
    """Sums over clients with one more, if it counts; a weight of zero counts for nothing, whatever was replied."""
    return Totals(*((Vector(total) + counts * part).tree for total, part in zip(totals, each, strict=True)))


def _figures(report: Report) -> jax.Array:
    return _stacked(report, report.loss.dtype)


def _stacked(figures: NamedTuple, dtype: Any) -> jax.Array:
    return jnp.stack([jnp.asarray(figure, dtype) for figure in figures])


def _bound(server: Server, largest: Any) -> jax.Array:
    """How long an update may be: what is more has exploded."""
    return jnp.asarray(largest, jax.tree.leaves(server.x)[0].dtype) * (1 + norm(server.x))


_traces: dict[str, int] = {}


def count_trace(phase: str) -> None:
    """Note that a phase was traced: it runs in Python only while JAX builds a program."""
    _traces[phase] = _traces.get(phase, 0) + 1


def traces() -> dict[str, int]:
    """How many programs were built for each phase since the process began."""
    return dict(_traces)
