"""What can be learned of an algorithm from the shapes of its messages, without computing a round."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedmime.algorithms.algorithm import Algorithm, Batch, Carry, Message, Reply, Server
from fedmime.errors import ConfigError
from fedmime.hyperparameters import at_round
from fedmime.vector import Vector, zeros


class AbstractClient:
    """A client for `Algorithm.local` under `jax.eval_shape`: it takes one step and notes what it was asked for."""

    def __init__(self, kept: Any) -> None:
        self.kept = kept
        self.steps = jnp.ones((), jnp.int32)
        self.pick = jnp.zeros((), jnp.int32)
        self.anchors: list[Vector] = []
        self.start: Any = None

    def grad(self, y: Vector, batch: Batch) -> Vector:
        """A vector shaped like the gradient at y."""
        return zeros(y)

    def grad_difference(self, y: Vector, x: Vector, batch: Batch) -> Vector:
        """A vector shaped like the gradient; x is recorded as an anchor."""
        if not any(x is anchor for anchor in self.anchors):
            self.anchors.append(x)
        return zeros(y)

    def descend(self, step: Callable[[Carry, Batch], Carry], start: Carry) -> Carry:
        """One step; the first entry of `start` is noted as the point where local steps begin."""
        self.start = start if isinstance(start, Vector) else start[0]  # pyright: ignore[reportIndexIssue]
        return step(start, Batch(jnp.zeros((), jnp.int32), None))


class Anchor(NamedTuple):
    """How local steps use `Client.grad_difference`, whose second point is fixed during a round: the anchor."""

    points: int = 0
    """At how many points the algorithm asks for full gradients."""
    used: bool = False
    """Whether local steps use gradient differences at all."""
    point: int | None = None
    """Which of the algorithm's `points` the anchor is; None if it is none of them."""
    start: bool = False
    """Whether local steps begin at the anchor, so that the first gradient difference is zero."""


def anchor_of(algorithm: Algorithm, server: Server) -> Anchor:
    """Find the anchor by evaluating one round on shapes; the answer is cached for each structure of the server."""
    leaves, tree = jax.tree.flatten((at_round(algorithm, 0), server))  # schedules change no shapes
    return _anchor_of(tree, tuple((jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves))


@functools.lru_cache(maxsize=64)
def _anchor_of(tree: Any, kinds: tuple[Any, ...]) -> Anchor:
    found = []

    def one_round(algorithm: Algorithm, server: Server) -> None:
        points = algorithm.points(server)
        if not algorithm.local_steps:
            found.append(Anchor(len(points)))
            return
        message = message_of(algorithm, server, tuple(zeros(point) for point in points))
        client = AbstractClient(algorithm.remember(server.x))
        algorithm.local(message, client)
        anchors = client.anchors
        place = next((i for i, point in enumerate(points) if len(anchors) == 1 and point is anchors[0]), None)
        found.append(Anchor(len(points), bool(anchors), place, place is not None and client.start is anchors[0]))

    jax.eval_shape(one_round, *jax.tree.unflatten(tree, [jax.ShapeDtypeStruct(*kind) for kind in kinds]))
    return found[0]


def reply_of(algorithm: Algorithm, server: Server, view: Callable[[Reply], Any] = lambda reply: reply) -> Any:
    """The shapes and types of what a client replies, or of what a function makes of the reply."""

    def one_round(algorithm: Algorithm, server: Server) -> Any:
        h = tuple(zeros(point) for point in algorithm.points(server))
        message = message_of(algorithm, server, h)
        return view(algorithm.local(message, AbstractClient(algorithm.remember(server.x))))

    return jax.eval_shape(one_round, at_round(algorithm, 0), server)


def message_of(algorithm: Algorithm, server: Server, h: tuple[Vector, ...]) -> Message:
    """The message to clients. An algorithm that does not wait for the mean gradients must do without them here."""
    try:
        return algorithm.broadcast(server, h if algorithm.waits else ())
    except IndexError:
        name = type(algorithm).__name__
        raise ConfigError(f"{name}: broadcast looks at the mean gradients, so waits must be True, got False") from None
