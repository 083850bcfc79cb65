"""What a round costs on the wire, counted from the messages that an algorithm really sends."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedmime.aggregation import wire
from fedmime.aggregation.aggregator import PLAIN, Aggregator, distinct
from fedmime.aggregation.chains import Aggregation, chain
from fedmime.aggregation.encoder import BROADCAST, GRADIENT, UPDATE, Sender
from fedmime.algorithms.abstract import AbstractClient
from fedmime.algorithms.algorithm import Algorithm
from fedmime.errors import ConfigError
from fedmime.hyperparameters import at_round
from fedmime.validation import POSITIVE, floating, made, real
from fedmime.vector import Vector, nbytes

__all__ = ["Cost", "Traffic", "cohort_for_budget", "cost"]


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Bytes that one client receives and sends in a round."""

    down: int
    up: int

    @property
    def total(self) -> int:
        """Both ways."""
        return self.down + self.up


@dataclasses.dataclass(frozen=True)
class Cost:
    """What one unit of a cohort costs: a client, or with split cohorts a pair of clients.

    `update` is the client that trains (and, without split cohorts, also sends its gradient); `gradient` the other
    client of a pair, None where there are no pairs; `prime` a client in a gradient-only round, None if there are none.
    """

    model_bytes: int
    update: Traffic
    gradient: Traffic | None
    prime: Traffic | None

    @property
    def bytes(self) -> int:
        """Both ways, of one unit."""
        return self.update.total + (self.gradient.total if self.gradient else 0)

    @property
    def model_sizes(self) -> float:
        """The same, in sizes of the model."""
        return self.bytes / self.model_bytes


def cost(algorithm: Algorithm, params: Any, aggregation: Aggregation | None = None) -> Cost:
    """The bytes a client receives and sends in a round, by what the algorithm's messages contain.

    An array that goes to the same client twice in a round (x with the request for a gradient and again with the
    message) is counted once. Compressed messages count with the packed bytes of their encoded form.
    """
    made("cost", "algorithm", algorithm, Algorithm, "come from fm.algorithms")
    floating("cost", "params", params)
    leaves, structure = jax.tree.flatten(params)
    kinds = tuple((jnp.shape(leaf), leaf.dtype) for leaf in leaves)
    given = (algorithm, structure, kinds, jnp.result_type(float), PLAIN if aggregation is None else chain(aggregation))
    try:
        hash(given)
    except TypeError:  # a user's own may hold arrays
        return _counted.__wrapped__(*given)
    return _counted(*given)


@functools.lru_cache(maxsize=64)
def _counted(algorithm: Algorithm, structure: Any, kinds: tuple[Any, ...], number: Any, aggregator: Aggregator) -> Cost:
    """`cost` of a model of such arrays, cached; `number` is the type that JAX gives Python's numbers."""
    algorithm, aggregator = at_round(algorithm, 0), aggregator.at_round(0)  # schedules change no shapes
    x = Vector(jax.tree.unflatten(structure, [jax.ShapeDtypeStruct(*kind) for kind in kinds]))
    server = jax.eval_shape(algorithm.start, x)
    h = jax.eval_shape(algorithm.points, server)

    def training(server: Any, h: Any, kept: Any) -> Any:
        points, message = algorithm.points(server), algorithm.broadcast(server, h)
        answer = algorithm.local(message, AbstractClient(kept))
        down = _broadcast(aggregator, message if algorithm.split else (points, message), algorithm.exact(message))
        return down, aggregator.encode(distinct((answer.send, answer.add))[0], _sender(UPDATE))

    asked = _asked(aggregator, algorithm.points, server)
    prime = _asked(aggregator, algorithm.prime_points, server) if algorithm.gradient_rounds else None
    if not algorithm.local_steps:
        return Cost(nbytes(x), asked, None, prime)
    down, up = map(wire.nbytes, jax.eval_shape(training, server, h, jax.eval_shape(algorithm.remember, x)))
    if algorithm.split:
        return Cost(nbytes(x), Traffic(down, up), asked, prime)
    return Cost(nbytes(x), Traffic(down, asked.up + up), None, prime)


def _asked(aggregator: Aggregator, points: Callable[[Any], Any], server: Any) -> Traffic:
    """What a client receives and sends that is asked for its full gradients at `points(server)`."""
    down = jax.eval_shape(lambda server: _broadcast(aggregator, points(server)), server)
    up = jax.eval_shape(lambda server: [aggregator.encode(g, _sender(GRADIENT)) for g in points(server)], server)
    return Traffic(wire.nbytes(down), wire.nbytes(up))


def _broadcast(aggregator: Aggregator, message: Any, exact: Any = ()) -> list[Any]:
    """What is sent of the server's arrays: each once, encoded unless it must be exact."""
    as_is, sender = {id(leaf) for leaf in jax.tree.leaves(exact)}, _sender(BROADCAST)
    return [leaf if id(leaf) in as_is else aggregator.encode(leaf, sender) for leaf in distinct(message)[0]]


def _sender(kind: str) -> Sender:
    """A placeholder: sizes of messages do not depend on who sends them."""
    return Sender(kind, 0, jax.random.key(0))


def cohort_for_budget(algorithm: Algorithm, params: Any, budget: float, aggregation: Aggregation | None = None) -> int:
    """How many clients (with split cohorts: pairs of clients) a budget of model-sizes a round allows."""
    real("cohort_for_budget", "budget", budget, POSITIVE)
    each = cost(algorithm, params, aggregation).model_sizes
    units = math.floor(budget / each + 1e-3)  # a few scalars beside the model must not cost a whole client
    if not units:
        raise ConfigError(f"cohort_for_budget: budget {budget!r} is below the {each:.3g} model-sizes of one client")
    return units
