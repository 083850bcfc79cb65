"""Thousands of tiny rounds in one compiled loop, over the very same Algorithm objects that the engine runs.

Clients are drawn with replacement, as the theory has it. An algorithm's numbers are leaves, so a whole grid of rates
is one call: `jax.vmap` over stacked algorithms. A test holds a round here against the engine's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedmime.algorithms.algorithm import Algorithm, Batch, Carry, Replies
from fedmime.experiments.theory_landscape import Landscape
from fedmime.vector import Vector

CHUNK = 20  # rounds between two looks at whether ε is reached


class PlainClient:
    """One client of a landscape. Lives only while a round is traced."""

    kept = ()
    pick = -1

    def __init__(self, land: Landscape, i: jax.Array, offset: jax.Array, steps: jax.Array) -> None:
        self.steps = steps
        self._land, self._i, self._offset = land, i, offset
        self.error = jnp.zeros(())  # sum of ‖(y − y⁺)/η − ∇f(y)‖² over local steps
        self.drift = jnp.zeros(())  # sum of ‖y − x‖²
        self.eta: Any = 1.0

    def grad(self, y: Vector, batch: Batch) -> Vector:
        """See `fedmime.algorithms.algorithm.Client.grad`."""
        land, i, x = self._land, self._i, y.tree
        zeta = land.noise[i, (self._offset + batch.index) % land.examples]
        return Vector(land.hessians[i] @ x - land.linear[i] - zeta + land.bent(x))

    def grad_difference(self, y: Vector, x: Vector, batch: Batch) -> Vector:
        """See `fedmime.algorithms.algorithm.Client.grad_difference`."""
        return self.grad(y, batch) - self.grad(x, batch)

    def descend(self, step: Callable[[Carry, Batch], Carry], start: Carry) -> Carry:
        """See `fedmime.algorithms.algorithm.Client.descend`."""
        x = cast(Vector, start).tree

        def body(k: jax.Array, loop: Any) -> Any:
            y, error, drift = loop
            new = step(y, Batch(k, k))
            off = (y.tree - cast(Vector, new).tree) / self.eta - self._land.mean_gradient(y.tree)
            return new, error + off @ off, drift + (y.tree - x) @ (y.tree - x)

        y, self.error, self.drift = lax.fori_loop(0, self.steps, body, (start, self.error, self.drift))
        return y


class Seen(NamedTuple):
    """What one round shows."""

    gradient2: Any  # ‖∇f‖² at the new x
    error: Any  # mean over clients and steps of ‖d − ∇f(y)‖², d the direction a client took
    drift: Any  # the same of ‖y − x‖²


def play(
    algorithm: Any, server: Any, land: Landscape, cohort: jax.Array, offsets: jax.Array, steps: Any
) -> tuple[Any, Seen]:
    """One round of an algorithm on the clients of a cohort."""
    h = tuple(Vector(land.gradients(point.tree, cohort).mean(0)) for point in algorithm.points(server))
    zero, N = jnp.zeros(()), jnp.asarray(land.clients)
    if not algorithm.local_steps:
        new = algorithm.server(server, h, Replies((), (), N, zero, zero, zero))
        return new, Seen(jnp.sum(land.mean_gradient(new.x.tree) ** 2), zero, zero)
    message = algorithm.broadcast(server, h)

    def local(i: jax.Array, offset: jax.Array) -> Any:
        client = PlainClient(land, i, offset, steps)
        client.eta = algorithm.eta
        send = algorithm.local(message, client).send
        return send, client.error / steps, client.drift / steps

    send, error, drift = jax.vmap(local)(cohort, offsets)
    mean = jax.tree.map(lambda leaf: leaf.mean(0), send)
    new = algorithm.server(server, h, Replies(mean, (), N, cohort.size * steps, steps, zero))
    return new, Seen(jnp.sum(land.mean_gradient(new.x.tree) ** 2), error.mean(), drift.mean())


def primed(algorithm: Any, land: Landscape, cohorts: jax.Array) -> Any:
    """The server after the algorithm's gradient-only rounds, one on each cohort that it asks for."""
    server = algorithm.start(Vector(land.start))
    for seen in range(algorithm.gradient_rounds):
        h = [Vector(land.gradients(p.tree, cohorts[seen]).mean(0)) for p in algorithm.prime_points(server)]
        server = algorithm.prime(server, tuple(h), jnp.asarray(seen, land.start.dtype))
    return server


@jax.jit
def _begin(grid: Any, land: Landscape, cohorts: jax.Array) -> Any:
    each = jax.vmap(lambda algorithm, cohorts: primed(algorithm, land, cohorts), in_axes=(0, None))
    return jax.vmap(each, in_axes=(None, 0))(grid, cohorts)


@jax.jit
def _advance(grid: Any, servers: Any, land: Landscape, cohorts: jax.Array, offsets: jax.Array, steps: Any) -> Any:
    """A chunk of rounds for every seed (outer axis) and every member of the grid (inner axis)."""

    def chunk(algorithm: Any, server: Any, cohorts: jax.Array, offsets: jax.Array) -> Any:
        def one(server: Any, drawn: tuple[jax.Array, jax.Array]) -> Any:
            return play(algorithm, server, land, *drawn, steps)

        return lax.scan(one, server, (cohorts, offsets))

    each = jax.vmap(chunk, in_axes=(0, 0, None, None))
    return jax.vmap(each, in_axes=(None, 0, 0, 0))(grid, servers, cohorts, offsets)


def _rounds(algorithms: Sequence[Algorithm], land: Landscape, S: int, K: int, seeds: int, most: int) -> Iterator[Seen]:
    """What chunk after chunk of rounds shows, arrays [seeds, members, rounds]; the same clients for every member."""
    random = np.random.default_rng(seeds)
    grid = stacked(algorithms)
    servers = _begin(grid, land, random.integers(land.clients, size=(seeds, algorithms[0].gradient_rounds, S)))
    for _ in range(0, most, CHUNK):
        cohorts = random.integers(land.clients, size=(seeds, CHUNK, S))
        offsets = random.integers(land.examples, size=(seeds, CHUNK, S))
        servers, seen = _advance(grid, servers, land, cohorts, offsets, K)
        yield jax.tree.map(np.asarray, seen)


def stacked(algorithms: Sequence[Algorithm]) -> Any:
    """Algorithms of one kind as one pytree, an axis of numbers for `jax.vmap`."""
    return jax.tree.map(lambda *numbers: jnp.asarray(numbers, float), *algorithms)


class Best(NamedTuple):
    """How many rounds the best member of a grid took, None where nobody arrived, and which member that is."""

    rounds: int | None
    member: int


def rounds_to(
    algorithms: Sequence[Algorithm], land: Landscape, eps: float, S: int, K: int, seeds: int, most: int
) -> Best:
    """Rounds until the mean over seeds of ‖∇f‖² is at most ε, for the member of the grid that is first there.

    Gradient-only rounds count. All members run side by side and stop when one has arrived.
    """
    done, values = algorithms[0].gradient_rounds, np.zeros((len(algorithms), 1))
    for seen in _rounds(algorithms, land, S, K, seeds, most):
        values = np.nan_to_num(seen.gradient2.mean(0), nan=np.inf, posinf=np.inf)
        if (values <= eps).any():
            first = np.where((values <= eps).any(1), (values <= eps).argmax(1), CHUNK)
            return Best(done + int(first.min()) + 1, int(first.argmin()))
        done += CHUNK
    return Best(None, int(values.min(1).argmin()))


def steady(algorithm: Algorithm, land: Landscape, S: int, K: int, seeds: int, rounds: int) -> Seen:
    """What rounds show on average in the second half of a run."""
    parts = [jax.tree.map(np.mean, seen) for seen in _rounds([algorithm], land, S, K, seeds, rounds)]
    late = parts[len(parts) // 2 :]
    return Seen(*(float(np.mean([getattr(part, name) for part in late])) for name in Seen._fields))
