"""The server's side of clients that are not written in JAX: an algorithm's message becomes an affine rule.

What the rule is and how a client follows it is in `rule.py`. Here the statistics of a base optimizer, and Mime's mean
gradient c, are folded into it, once a round for all such clients. Algorithms whose local step has no such form are
refused before the first round.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from fedmime.aggregation import wire
from fedmime.aggregation.aggregator import Aggregator
from fedmime.algorithms.algorithm import Algorithm, Message
from fedmime.algorithms.fedacg import FedACG
from fedmime.algorithms.fedavg import FedAvg
from fedmime.algorithms.fedcm import FedCM
from fedmime.algorithms.fedprox import FedProx
from fedmime.algorithms.mime import Mime, MimeMessage
from fedmime.algorithms.scaffold import Scaffold
from fedmime.deploy.dialect import Offer
from fedmime.deploy.messages import Ask, packed
from fedmime.deploy.rule import Arrays, Rule, Signature
from fedmime.errors import ConfigError
from fedmime.optimizers.adafactor import Adafactor
from fedmime.optimizers.adagrad import Adagrad
from fedmime.optimizers.adam import Adam, RMSProp
from fedmime.optimizers.base import BaseOptimizer
from fedmime.optimizers.momentum import Momentum
from fedmime.optimizers.nesterov import Nesterov
from fedmime.optimizers.sgd import SGD
from fedmime.optimizers.sm3 import SM3
from fedmime.optimizers.yogi import Yogi
from fedmime.runs import identity
from fedmime.vector import Vector

_BASES = (SGD, Momentum, Nesterov, Adagrad, Adam, RMSProp, Yogi, SM3, Adafactor)
_ACCEPTED = "mime and mime_lite with a built-in base applied frozen, fedavg, fedprox, fedacg, fedcm and scaffold"


def check(algorithm: Algorithm, aggregator: Aggregator, model: Any, *, random: bool = False) -> None:
    """Refuse what clients without JAX cannot do, in one line.

    Classes are compared exactly: a class derived from one of ours may well have another local step.

    Args:
        model: the model, or its shapes.
        random: whether the loss draws random numbers, which are JAX's and cannot be drawn without it.

    Raises:
        ConfigError: the local step of the algorithm is no affine rule, messages are encoded, the loss is random, or
            the model's arrays are not all single or all double precision.
    """
    if why := _foreign(algorithm):
        raise ConfigError(f"a client without JAX cannot follow {why}; accepted are {_ACCEPTED}")
    if aggregator.encoders or aggregator.down:
        parts = ", ".join(type(one).__name__.lower() for one in (*aggregator.encoders, *aggregator.down))
        raise ConfigError(f"a client without JAX sends plain numbers: aggregation must encode nothing, got {parts}")
    if random:
        raise ConfigError("a client without JAX cannot draw the random numbers of the loss; dropout must be 0")
    signature_of(model)


def signature_of(model: Any) -> Signature:
    """The signature of a model, or of its shapes."""
    return Signature.of(identity.shapes(model))


def _foreign(algorithm: Algorithm) -> str | None:
    """What about an algorithm cannot be written as a rule; None if it can."""
    if type(algorithm) in (FedAvg, FedProx, FedACG, FedCM, Scaffold):
        return None
    name = type(algorithm).__name__
    if type(algorithm) is not Mime:
        return name
    if type(algorithm.base) not in _BASES:
        return f"{name} with the base optimizer {type(algorithm.base).__name__}"
    if algorithm.state != "fixed" or algorithm.apply != "frozen":
        return f"{name} with state={algorithm.state!r} and apply={algorithm.apply!r}"
    return None


def rule_of(algorithm: Algorithm, message: Message) -> Rule:
    """The rule that says the same as `algorithm.local(message, …)`.

    Args:
        algorithm: with this round's numbers in place of schedules, accepted by `check`.
        message: what it broadcasts.
    """
    eta = float(algorithm.eta)  # pyright: ignore[reportAttributeAccessIssue] - all that `check` accepts have it
    if isinstance(algorithm, Mime):
        folded = _folded(algorithm.base, message)
        scale = _arrays(folded.scale) if isinstance(folded.scale, Vector) else float(folded.scale)
        return Rule(eta, correction=message.c is not None, scale=scale, offset=_unless_zero(folded.offset))
    if isinstance(algorithm, Scaffold):
        return Rule(eta, keeps=True, offset=_unless_zero(message[1]))
    if isinstance(algorithm, FedCM):
        alpha = float(algorithm.alpha)
        return Rule(eta, scale=alpha, offset=_unless_zero((1 - alpha) * message[1]))
    return Rule(eta, mu=float(algorithm.mu) if isinstance(algorithm, FedProx | FedACG) else 0.0)


class _Folded(NamedTuple):
    """The direction of a Mime step as a function of the gradient, or of the gradient difference: scale ⊙ g + offset."""

    scale: Any
    offset: Vector


@jax.jit
def _folded(base: BaseOptimizer, message: MimeMessage) -> _Folded:
    """U(g, s), or Mime's U(g + c, s), at the statistics of a message."""
    x, s, c = message
    affine = base.affine(s, x)
    assert affine is not None
    scale, offset = affine
    return _Folded(scale, offset if c is None else offset + scale * c)


def _unless_zero(offset: Vector) -> Arrays | None:
    """The arrays of an offset, of which one that is zero everywhere need not be sent."""
    found = _arrays(offset)
    return found if any(np.any(array) for array in found) else None


def _arrays(vector: Vector) -> Arrays:
    """The arrays of a vector on the host, in the order in which they travel."""
    return [np.asarray(leaf) for leaf in jax.tree.leaves(jax.device_get(vector))]


class AffineDialect:
    """Requests to nodes that follow a rule; see `Dialect`.

    It serves one round, in which it remembers who was sent the model.
    """

    def __init__(self) -> None:
        self._sent: set[int] = set()  # clients that have x
        self._rule: Rule | None = None
        self._packed: dict[tuple[bool, bool], tuple[dict[str, Any], bytes]] = {}  # by whether x and a rule are in it

    def request(self, ask: Ask, offer: Offer) -> bytes:
        """See `Dialect.request`."""
        form = ask.client not in self._sent, ask.train
        self._sent.add(ask.client)
        if form not in self._packed:
            self._packed[form] = self._made(*form, offer)
        fields, payload = self._packed[form]
        return packed(ask._replace(affine=fields), payload)

    def _made(self, with_model: bool, train: bool, offer: Offer) -> tuple[dict[str, Any], bytes]:
        """`Ask.affine` and the payload, the same for all clients that need the same."""
        if train and self._rule is None:
            self._rule = rule_of(offer.work.algorithm, offer.message)
        rule = self._rule if train else None
        x = (offer.points if offer.message is None else offer.message)[0]  # what all of these algorithms send first
        models = [jax.device_get(x)] if with_model else []
        fields = {"model": with_model, "rule": None if rule is None else rule.fields}
        return fields, wire.pack([models, [] if rule is None else rule.arrays])
