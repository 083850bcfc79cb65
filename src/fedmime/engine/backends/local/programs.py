"""The two compiled programs of a round: full gradients, and training.

Each device works through its clients one after another, with loops whose trip counts are arguments, so that any mix of
client sizes runs the same program and no client is padded to the length of another. A device returns its own
partial sums: no device waits for another inside a program.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from itertools import repeat
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh

from fedmime.aggregation.aggregator import Aggregator, sender_of
from fedmime.aggregation.encoder import GRADIENT, UPDATE
from fedmime.aggregation.gate import Reason
from fedmime.algorithms.algorithm import Algorithm, Message, Reply
from fedmime.engine.backends.backend import Problem, Scalars, Totals
from fedmime.engine.backends.local.client import LaneClient, Watch
from fedmime.engine.backends.local.devices import REPLICATED, SHARDED
from fedmime.engine.backends.local.gradients import AtAnchor, Lane, Part, blank_tables, full_gradient, whole
from fedmime.engine.backends.local.layout import GradientClient, Tables
from fedmime.vector import Vector, finite, where, zeros


class Options(NamedTuple):
    """What the programs are specialised for."""

    mesh: Mesh
    lanes: int
    """Clients that a device trains side by side."""
    chunk: int
    """Examples that a full gradient takes at once."""
    at_anchor: str | None
    """What the full gradient at the anchor leaves for local steps: `factors`, `cache` or nothing."""
    by_steps: bool
    """Whether full gradients go through the clients' mini-batches, as local steps will."""
    anchor: int | None
    """Which of the points is the anchor."""
    starts_at_anchor: bool
    drift: bool
    dtype: str
    """The model's."""
    wants_losses: bool = False
    """Whether the losses of single clients are wanted, too."""


class Gathered(NamedTuple):
    """What a program gives for single clients, in arrays [devices * lanes, clients, ...]."""

    refused: Any
    """The `Reason` of every client, as a number; `()` where no message was judged."""
    messages: Any
    """The decoded messages, for a combiner that needs all of them; `()` otherwise."""
    losses: Any = ()
    """The sum of each client's mini-batch losses, if these are wanted; `()` otherwise."""
    kept: Any = ()
    """What clients keep between rounds, of the training program."""
    recorded: Any = ()
    """What the gradient program recorded at the anchor for local steps, of examples or mini-batches."""


@functools.partial(jax.jit, static_argnames=("problem", "options"))
def gradients(
    problem: Problem,
    aggregator: Aggregator,
    points: tuple[Vector, ...],
    pool: Mapping[str, jax.Array],
    tables: Tables,
    key: jax.Array,
    bound: jax.Array,
    options: Options,
) -> tuple[tuple[tuple[Vector, ...], jax.Array], Gathered]:
    """Full gradients at every point.

    Returns:
        Each device's part [devices, ...] of the sums Σ wⱼ gⱼ, one for every point, with [devices, 2] the weight and the
        number of clients that were not clipped, if every client's own gradient was needed. Then what belongs to single
        clients and examples, which stays on the device that computed it.
    """

    def in_lane(tables: Tables, own: tuple[()], points: tuple[Vector, ...], aggregator: Any, *given: Any) -> Any:
        pool, key, bound = given
        lane = Lane(problem, pool, tables, key, options.chunk, options.lanes == 1)
        hows = [options.at_anchor if i == options.anchor else None for i in range(len(points))]
        hows = [how or ("steps" if options.by_steps else None) for how in hows]
        recorded = [blank_tables(lane, point, how) for point, how in zip(points, hows, strict=True)]
        if aggregator.by_client:
            sums, scalars, recorded, refused, messages = _by_client(aggregator, lane, points, hows, recorded, bound)
        else:
            asked = zip(points, repeat(whole(lane)), hows, recorded, strict=False)
            sums, recorded = zip(*(full_gradient(lane, *each) for each in asked), strict=True)
            scalars, refused, messages = jnp.zeros(2), (), ()
        at_anchor = () if options.anchor is None else recorded[options.anchor]
        return (tuple(sums), scalars), Gathered(refused, messages, recorded=at_anchor)

    return _on_devices(options, in_lane, tables, (), points, aggregator, pool, key, bound)


def _by_client(
    aggregator: Aggregator,
    lane: Lane,
    points: tuple[Vector, ...],
    hows: list[str | None],
    recorded: list[Any],
    bound: jax.Array,
) -> tuple[Any, jax.Array, Any, jax.Array, Any]:
    """The full gradients of a lane's clients, each encoded, decoded and judged by itself."""
    shares, linear = lane.tables.gradient_shares, aggregator.combiner.linear

    def fold(j: jax.Array, carry: Any) -> Any:
        sums, scalars, recorded, refused, messages = carry
        asked = GradientClient(*jnp.asarray(lane.tables.gradient_clients)[j])
        # Only gradients over mini-batches (`steps`, `cache`) use the second range, that of clients that train. They are
        # taken only if every member trains and sends its gradient (`Cohort.batches_cover_gradient`); the lane then has
        # the same clients in both tables, in the same order, so j is the client's place in either.
        part = Part((asked.first, asked.first + asked.chunks), (j, j + 1))
        found = [full_gradient(lane, *each) for each in zip(points, repeat(part), hows, recorded, strict=False)]
        senders = [sender_of(GRADIENT, lane.key, asked.client, number) for number in range(len(points))]
        each = [aggregator.deliver(g, (), by, bound) for (g, _), by in zip(found, senders, strict=True)]
        sent = tuple(delivered.message for delivered in each)
        reason = functools.reduce(jnp.maximum, [delivered.reason for delivered in each])
        good, w = reason == Reason.ACCEPTED, shares[j]
        if linear:
            sums = jax.tree.map(lambda total, g: total + jnp.where(good, w.astype(g.dtype) * g, 0), sums, sent)
        else:
            messages = put(messages, where(good, sent, jax.tree.map(jnp.zeros_like, sent)), j)
        unclipped = functools.reduce(jnp.logical_and, [delivered.unclipped for delivered in each], good)
        counted = jnp.stack([jnp.where(good, w, 0), unclipped])
        return sums, scalars + counted, [rows for _, rows in found], refused.at[j].set(reason), messages

    blank = tuple(map(zeros, points))
    kinds = jax.tree.map(lambda leaf: jnp.zeros((*shares.shape, *leaf.shape), leaf.dtype), blank)
    start = (blank if linear else (), jnp.zeros(2, shares.dtype), recorded, jnp.zeros(shares.shape, jnp.int32))
    return lax.fori_loop(0, lane.tables.lengths[2], fold, (*start, () if linear else kinds))


@functools.partial(jax.jit, static_argnames=("problem", "options"))
def training(
    problem: Problem,
    algorithm: Algorithm,
    aggregator: Aggregator,
    message: Message,
    at_anchor: Any,
    kept: Any,
    pool: Mapping[str, jax.Array],
    tables: Tables,
    key: jax.Array,
    pick: jax.Array,
    bound: jax.Array,
    options: Options,
) -> tuple[Totals, Gathered]:
    """Local steps of every client: each device's sums [devices, ...], and what belongs to single clients.

    Args:
        at_anchor: what the gradient program recorded in this round, or empty.
        kept: what the clients have kept from earlier rounds, [devices * lanes, clients, ...].
        pick: the cohort's step whose iterate is drawn, or -1.
        bound: how long an update may be before it is refused.
    """

    def in_lane(tables: Tables, own: Any, message: Message, recipes: Any, pool: Any, key: Any, numbers: Any) -> Any:
        (tables_at_anchor, kept), (pick, bound) = own, numbers
        lane = Lane(problem, pool, tables, key, options.chunk, options.lanes == 1)
        known = AtAnchor(options.at_anchor, *tables_at_anchor) if options.at_anchor and tables_at_anchor else None
        algorithm, aggregator = recipes
        return _train(algorithm, aggregator, message, lane, known, kept, pick, bound, options)

    given = (message, (algorithm, aggregator), pool, key, (pick, bound))
    return _on_devices(options, in_lane, tables, (at_anchor, kept), *given)


def _train(
    algorithm: Algorithm,
    aggregator: Aggregator,
    message: Message,
    lane: Lane,
    at_anchor: AtAnchor | None,
    kept: Any,
    pick: jax.Array,
    bound: jax.Array,
    options: Options,
) -> tuple[Totals, Gathered]:
    """Train a lane's clients one after another and add up their replies."""
    shares, linear = lane.tables.shares, aggregator.combiner.linear
    dtype = jnp.dtype(options.dtype)

    def local(i: jax.Array) -> tuple[Reply, Any, Watch]:
        """What client i computes, and the residual that its earlier updates left."""
        trainee, own_pick = lane.trainee(i), None
        if algorithm.draws:
            own_pick = pick - trainee.before
            own_pick = jnp.where((own_pick >= 0) & (own_pick < trainee.steps), own_pick, -1)
        own = jax.tree.map(lambda leaf: leaf[i], kept)
        own, residual = own if aggregator.error_feedback else (own, ())
        client = LaneClient(
            lane,
            trainee,
            own,
            own_pick,
            at_anchor=at_anchor,
            starts_at_anchor=options.starts_at_anchor,
            watch_drift=options.drift,
            dtype=dtype,
        )
        reply = algorithm.local(message, client)
        return jax.tree.map(jnp.asarray, reply), residual, client.watch

    def fold(i: jax.Array, carry: tuple[Totals, Gathered]) -> tuple[Totals, Gathered]:
        """Train client i and send its update. One that the gate refuses counts for nothing, whatever it holds."""
        totals, (refused, messages, losses, new, _) = carry
        reply, residual, watch = local(i)
        trainee = lane.trainee(i)
        sender = sender_of(UPDATE, lane.key, trainee.client)
        delivered = aggregator.deliver((reply.send, reply.add), residual, sender, bound)
        send, add = delivered.message
        keep = (reply.keep, delivered.residual) if aggregator.error_feedback else reply.keep
        reason = jnp.where(finite(reply.keep), delivered.reason, Reason.NOT_FINITE)
        good = reason == Reason.ACCEPTED
        w, steps = shares[i].astype(dtype), trainee.steps.astype(dtype)
        counted = jnp.ones((), dtype), jnp.asarray(delivered.unclipped, dtype)
        scalars = Scalars(w, watch.loss, watch.drift, steps, w * steps, *counted)
        if linear:
            each = Totals(jax.tree.map(lambda leaf: w.astype(leaf.dtype) * leaf, send), add, jnp.stack(scalars))
        else:
            each = Totals((), add, jnp.stack(scalars))
            messages = put(messages, where(good, send, jax.tree.map(jnp.zeros_like, send)), i)
        totals = jax.tree.map(lambda total, term: total + jnp.where(good, term, 0), totals, each)
        new = put(new, jax.tree.map(lambda all_, leaf: jnp.where(good, leaf, all_[i]), new, keep), i)
        losses = put(losses, watch.loss if options.wants_losses else (), i)
        return totals, Gathered(refused.at[i].set(reason), messages, losses, new)

    like = jax.eval_shape(local, jnp.zeros((), jnp.int32))[0]
    blank = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)
    totals = Totals(blank.send if linear else (), blank.add, jnp.zeros(len(Scalars._fields), dtype))
    messages = jax.tree.map(lambda leaf: jnp.zeros((*shares.shape, *leaf.shape), leaf.dtype), blank.send)
    losses = jnp.zeros(shares.shape, dtype) if options.wants_losses else ()
    start = Gathered(jnp.zeros(shares.shape, jnp.int32), () if linear else messages, losses, kept)
    return lax.fori_loop(0, lane.tables.lengths[1], fold, (totals, start))


def put(tables: Any, rows: Any, i: jax.Array) -> Any:
    """Write row i of every table of a pytree."""
    return jax.tree.map(lambda table, row: lax.dynamic_update_index_in_dim(table, row, i, 0), tables, rows)


def _on_devices(
    options: Options, in_lane: Callable[..., Any], tables: Tables, own: Any, *replicated: Any
) -> tuple[Any, Any]:
    """Call `in_lane(tables, own, *replicated) -> (sums, results)` in every lane of every device.

    `tables`, `own` and the results have a leading axis [devices * lanes]. Sums are added up over the lanes of each
    device, which gives arrays [devices, ...].
    """

    def on_device(tables: Tables, own: Any, replicated: Any) -> Any:
        if options.lanes == 1:  # without an axis of lanes, which would make a CPU copy the model at every step
            sums, results = in_lane(*jax.tree.map(lambda leaf: leaf[0], (tables, own)), *replicated)
            return jax.tree.map(lambda leaf: leaf[None], (sums, results))
        sums, results = jax.vmap(lambda tables, own: in_lane(tables, own, *replicated))(tables, own)
        return jax.tree.map(lambda leaf: leaf.sum(0)[None], sums), results

    specs = {"in_specs": (SHARDED, SHARDED, REPLICATED), "out_specs": SHARDED, "check_vma": False}
    return jax.shard_map(on_device, mesh=options.mesh, **specs)(tables, own, replicated)
