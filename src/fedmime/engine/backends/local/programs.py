"""The two compiled programs of a round: full gradients, and training.

Each device works through its clients one after another, with loops whose trip counts are arguments, so that any mix of
client sizes runs the same program and no client is padded to the length of another. A device returns its own
partial sums: no device waits for another inside a program.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh

from fedmime.algorithms.algorithm import Algorithm, Message, Reply
from fedmime.engine.backends.backend import Figures, Problem, Totals
from fedmime.engine.backends.local.client import LaneClient, Watch
from fedmime.engine.backends.local.devices import REPLICATED, SHARDED
from fedmime.engine.backends.local.gradients import (
    AtAnchor,
    Lane,
    full_gradient,
    full_gradient_by_steps,
    full_gradient_with_factors,
)
from fedmime.engine.backends.local.layout import Tables
from fedmime.vector import Vector, finite, norm


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


@functools.partial(jax.jit, static_argnames=("problem", "options"))
def gradients(
    problem: Problem,
    points: tuple[Vector, ...],
    pool: Mapping[str, jax.Array],
    tables: Tables,
    key: jax.Array,
    options: Options,
) -> tuple[tuple[Vector, ...], Any]:
    """Each device's part [devices, ...] of the mean full gradient at every point, and what is kept at the anchor.

    What is kept stays on the device that computed it, for the training program of the same round.
    """

    def in_lane(tables: Tables, own: tuple[()], points: tuple[Vector, ...], pool: Any, key: jax.Array) -> Any:
        lane = Lane(problem, pool, tables, key, options.chunk, options.lanes == 1)
        sums, at_anchor = [], None
        for i, point in enumerate(points):
            how = options.at_anchor if i == options.anchor else None
            if how == "factors":
                total, at_anchor = full_gradient_with_factors(lane, point)
            elif options.by_steps or how == "cache":
                total, cached = full_gradient_by_steps(lane, point, keep=how == "cache")
                at_anchor = cached or at_anchor
            else:
                total = full_gradient(lane, point)
            sums.append(total)
        return tuple(sums), () if at_anchor is None else at_anchor[1:]

    return _on_devices(options, in_lane, tables, (), points, pool, key)


@functools.partial(jax.jit, static_argnames=("problem", "options"))
def training(
    problem: Problem,
    algorithm: Algorithm,
    message: Message,
    at_anchor: Any,
    kept: Any,
    pool: Mapping[str, jax.Array],
    tables: Tables,
    key: jax.Array,
    pick: jax.Array,
    bound: jax.Array,
    options: Options,
) -> tuple[Totals, tuple[Any, jax.Array]]:
    """Local steps of every client: each device's sums [devices, ...], what the clients keep [lanes, clients, ...], and
    whether the gate refused their replies [lanes, clients], with all devices' lanes on one axis.

    Args:
        at_anchor: what the gradient program kept in this round, or empty.
        kept: what the clients had kept from earlier rounds, [devices * lanes, clients, ...].
        pick: the cohort's step whose iterate is drawn, or -1.
        bound: how long an update may be before it is refused.
    """

    def in_lane(tables: Tables, own: Any, message: Message, algorithm: Any, pool: Any, key: Any, scalars: Any) -> Any:
        (tables_at_anchor, kept), (pick, bound) = own, scalars
        lane = Lane(problem, pool, tables, key, options.chunk, options.lanes == 1)
        known = AtAnchor(options.at_anchor, *tables_at_anchor) if options.at_anchor and tables_at_anchor else None
        return _train(algorithm, message, lane, known, kept, pick, bound, options)

    given = (message, algorithm, pool, key, (pick, bound))
    return _on_devices(options, in_lane, tables, (at_anchor, kept), *given)


def _train(
    algorithm: Algorithm,
    message: Message,
    lane: Lane,
    at_anchor: AtAnchor | None,
    kept: Any,
    pick: jax.Array,
    bound: jax.Array,
    options: Options,
) -> tuple[Totals, tuple[Any, jax.Array]]:
    """Train a lane's clients one after another and add up their replies."""
    shares = lane.tables.shares
    dtype = jnp.dtype(options.dtype)

    def local(i: jax.Array) -> tuple[Reply, Watch]:
        trainee, own_pick = lane.trainee(i), None
        if algorithm.draws:
            own_pick = pick - trainee.before
            own_pick = jnp.where((own_pick >= 0) & (own_pick < trainee.steps), own_pick, -1)
        client = LaneClient(
            lane,
            trainee,
            jax.tree.map(lambda leaf: leaf[i], kept),
            own_pick,
            at_anchor=at_anchor,
            starts_at_anchor=options.starts_at_anchor,
            watch_drift=options.drift,
            dtype=dtype,
        )
        reply = algorithm.local(message, client)
        return jax.tree.map(jnp.asarray, reply), client.watch

    def fold(i: jax.Array, carry: tuple[Totals, Any, jax.Array]) -> tuple[Totals, Any, jax.Array]:
        """Train client i. A reply that the gate refuses counts for nothing, whatever it holds."""
        totals, new, refused = carry
        reply, watch = local(i)
        length = norm(Vector(reply.send))
        good = jnp.isfinite(length) & (length <= bound) & finite((reply.add, reply.keep))
        w, steps = shares[i].astype(dtype), lane.trainee(i).steps.astype(dtype)
        each = Totals(
            send=jax.tree.map(lambda leaf: w.astype(leaf.dtype) * leaf, reply.send),
            add=reply.add,
            figures=jnp.stack(Figures(w, watch.loss, watch.drift, steps, w * steps)),
        )
        totals = jax.tree.map(lambda total, term: total + jnp.where(good, term, 0), totals, each)
        new = jax.tree.map(
            lambda all_, leaf: lax.dynamic_update_index_in_dim(all_, jnp.where(good, leaf, all_[i]), i, 0),
            new,
            reply.keep,
        )
        return totals, new, refused.at[i].set(~good)

    like = jax.eval_shape(local, jnp.zeros((), jnp.int32))[0]
    blank = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)
    totals = Totals(blank.send, blank.add, jnp.zeros(len(Figures._fields), dtype))
    start = (totals, kept, jnp.zeros(shares.shape, bool))
    totals, new, refused = lax.fori_loop(0, lane.tables.lengths[1], fold, start)
    return totals, (new, refused)


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
