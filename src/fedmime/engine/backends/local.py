"""One process: a round as one compiled call, clients spread over the local devices.

Each device works through its clients one after another with loops whose trip counts are arguments, so the work is
that of the real examples and any mix of client sizes runs the same program.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from fedmime.algorithms.algorithm import Algorithm, Replies, Server
from fedmime.engine.client import Examples, LaneClient, LossProblem, Watch, weighted_loss
from fedmime.engine.devices import AXIS
from fedmime.engine.plan import Tables
from fedmime.vector import Vector, finite, norm, where


class Work(NamedTuple):
    """What a compiled round takes beside the server's state."""

    tables: Tables
    kept: Any  # [devices, clients, ...] what the clients had kept
    population: Any
    round: Any
    coin: Any
    key: jax.Array  # of the run; the round's own is folded in


class Outcome(NamedTuple):
    """What a compiled round gives beside the server's state."""

    kept: Any  # [devices, clients, ...] what the clients keep now
    refused: jax.Array  # [devices, clients] whether the reply was not finite
    finite: jax.Array  # whether the round was accepted; if not, the state is the old one
    loss: jax.Array
    drift: jax.Array
    gradient_norm: jax.Array
    update_norm: jax.Array


class Options(NamedTuple):
    """What a compiled round is specialised for."""

    mesh: Mesh
    chunk: int
    prime: bool
    drift: bool


@functools.partial(jax.jit, static_argnames=("problem", "options"))
def compiled_round(
    algorithm: Algorithm, problem: LossProblem, server: Server, work: Work, options: Options
) -> tuple[Server, Outcome]:
    """Run a round; `algorithm` holds this round's numbers as leaves, so other numbers need no new program."""
    count_trace("prime" if options.prime else "round")
    everywhere, spread = PartitionSpec(), PartitionSpec(AXIS)
    shared = work._replace(tables=None, kept=None, key=jax.random.fold_in(work.key, work.round))
    outcome: Any = Outcome._make([spread, spread] + [everywhere] * (len(Outcome._fields) - 2))

    @functools.partial(
        jax.shard_map,
        mesh=options.mesh,
        in_specs=(everywhere, everywhere, everywhere, spread, spread),
        out_specs=(everywhere, outcome),
        check_vma=False,
    )
    def on_device(algorithm, server, shared, tables, kept):
        own, kept = jax.tree.map(lambda leaf: leaf[0], (tables, kept))
        new, result = _round(algorithm, problem, server, shared._replace(tables=own, kept=kept), options)
        stacked = jax.tree.map(lambda leaf: leaf[None], (result.kept, result.refused))
        return new, result._replace(kept=stacked[0], refused=stacked[1])

    return on_device(algorithm, server, shared, work.tables, work.kept)


def _round(
    algorithm: Algorithm, problem: LossProblem, server: Server, work: Work, options: Options
) -> tuple[Server, Outcome]:
    points = algorithm.prime_points(server) if options.prime else algorithm.points(server)
    h = tuple(_mean_gradient(problem, point, work, options.chunk) for point in points)
    dtype = jax.tree.leaves(server.x)[0].dtype
    zero = jnp.zeros((), dtype)
    refused = jnp.zeros(work.tables.clients.steps.shape, bool)
    loss = drift = zero
    accepted = jnp.asarray(True)
    if options.prime:
        new, kept = algorithm.prime(server, h, work.round), work.kept
    else:
        replies, kept = Replies((), (), work.population, zero, work.coin), work.kept
        if algorithm.local_steps:
            replies, kept, refused, loss, drift, accepted = _train(algorithm, problem, server, h, work, options)
        new = algorithm.server(server, h, replies)
    accepted = accepted & finite(new)
    new = where(accepted, new, server)
    kept = where(accepted, kept, work.kept)
    gradient_norm = norm(h[0]) if h else zero
    return new, Outcome(kept, refused, accepted, loss, drift, gradient_norm, norm(new.x - server.x))


def _mean_gradient(problem: LossProblem, point: Vector, work: Work, chunk: int) -> Vector:
    """The cohort's weighted mean of full gradients: one gradient over the union of its examples, chunk by chunk."""
    tables = work.tables

    def add(i: jax.Array, total: Vector) -> Vector:
        start, count, owner, number = (column[i] for column in tables.chunks)
        place = jnp.arange(chunk)
        rows = start + jnp.minimum(place, count - 1)  # padding repeats a real row
        real = place < count
        examples = Examples(
            {name: column[rows] for name, column in tables.pool.items()},
            jnp.where(real, tables.probe_weights[rows], 0),
            real,
            jax.random.fold_in(jax.random.fold_in(work.key, owner), PROBE_STREAM + number),
        )
        return total + Vector(jax.grad(weighted_loss, argnums=1)(problem, point.tree, examples))

    return lax.psum(lax.fori_loop(0, tables.chunk_count, add, point.map(jnp.zeros_like)), AXIS)


PROBE_STREAM = 1 << 30  # full gradients draw their random numbers apart from local steps 0, 1, ...


def _train(algorithm: Algorithm, problem: LossProblem, server: Server, h: Any, work: Work, options: Options) -> Any:
    """Local steps of the device's clients, one client after another, then the mean over all devices."""
    tables = work.tables
    message = algorithm.broadcast(server, h)
    anchor = algorithm.anchor(message)
    width = tables.rows.shape[-1]
    dtype = jax.tree.leaves(server.x)[0].dtype

    def client(i: jax.Array) -> LaneClient:
        first = tables.clients.first[i]
        key = jax.random.fold_in(work.key, tables.clients.index[i])

        def examples(k: jax.Array) -> Examples:
            rows, count = tables.rows[first + k], tables.counts[first + k]
            real = jnp.arange(width) < count
            fields = {name: column[rows] for name, column in tables.pool.items()}
            return Examples(fields, real.astype(dtype) / count.astype(dtype), real, jax.random.fold_in(key, k))

        kept = jax.tree.map(lambda leaf: leaf[i], work.kept)
        steps, pick = tables.clients.steps[i], tables.clients.pick[i]
        return LaneClient(problem, examples, anchor, kept, steps, pick, options.drift)

    def run(i: jax.Array) -> tuple[Any, Watch]:
        one = client(i)
        reply = algorithm.local(message, one)
        return reply, one.watch or Watch.zero(dtype)

    def fold(i: jax.Array, totals: Any) -> Any:
        send, add, kept, refused, weight, watch, steps = totals
        reply, seen = run(i)
        good = finite(reply)
        w = jnp.where(good, tables.clients.weight[i].astype(dtype), 0)
        send = jax.tree.map(lambda total, leaf: total + w * jnp.where(good, leaf, 0), send, reply.send)
        add = jax.tree.map(lambda total, leaf: total + jnp.where(good, leaf, jnp.zeros_like(leaf)), add, reply.add)
        kept = jax.tree.map(lambda all_, leaf: all_.at[i].set(jnp.where(good, leaf, all_[i])), kept, reply.keep)
        watch = jax.tree.map(lambda total, leaf: total + jnp.where(good, leaf, 0), watch, seen)
        steps = steps + jnp.where(good, tables.clients.steps[i], 0)
        return send, add, kept, refused.at[i].set(~good), weight + w, watch, steps

    shape = jax.eval_shape(run, jnp.zeros((), jnp.int32))[0]
    blank = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shape)
    refused = jnp.zeros(tables.clients.steps.shape, bool)
    start = (
        blank.send,
        blank.add,
        work.kept,
        refused,
        jnp.zeros((), dtype),
        Watch.zero(dtype),
        jnp.zeros((), jnp.int32),
    )
    send, add, kept, refused, weight, watch, steps = lax.fori_loop(0, tables.client_count, fold, start)
    send, add, weight, watch, steps = lax.psum((send, add, weight, watch, steps), AXIS)
    mean = jax.tree.map(lambda leaf: leaf / weight, send)
    total_steps = jnp.maximum(steps, 1).astype(dtype)
    replies = Replies(mean, add, work.population, steps.astype(dtype), work.coin)
    return replies, kept, refused, watch.loss / total_steps, watch.drift / total_steps, steps > 0


_traces: dict[str, int] = {}


def count_trace(phase: str) -> None:
    """Note that a phase was traced: it runs in Python only while JAX builds a program."""
    _traces[phase] = _traces.get(phase, 0) + 1


def traces() -> dict[str, int]:
    """How many programs were built for each phase since the process began."""
    return dict(_traces)
