"""The aggregator of a run: what happens to messages between clients and the server's mean.

A client encodes what it sends (`send`), the server decodes it (`receive`), judges it (`reason_of`) and combines the
messages of the cohort. It is the same for updates and for full gradients. What the server broadcasts goes the other
way, through a `Broadcaster`. Encoding and decoding are pure functions, so a simulated round and a deployed one share
one text: in a simulation a message is encoded and decoded at once (`deliver`), inside the compiled loop. `chains.py`
makes aggregators.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedmime.aggregation.accounting import MOST_RELEASES, Ledger, Sampling, epsilon
from fedmime.aggregation.clipping import Clip, scaled, within
from fedmime.aggregation.combiner import Combiner, Mean
from fedmime.aggregation.encoder import (
    BROADCAST,
    GRADIENT,
    SERVER,
    UPDATE,
    Encoded,
    Encoder,
    Sender,
    decode_chain,
    encode_chain,
)
from fedmime.aggregation.gate import Reason, judge
from fedmime.aggregation.privacy import Gaussian, Norms
from fedmime.hyperparameters import at_round, recipe, static
from fedmime.vector import Vector, finite

# Random streams of a round's key: local steps draw from streams 0, 1, …, full gradients from 2^30 on.
_STREAMS = {UPDATE: 1 << 29, GRADIENT: (1 << 29) + 1, BROADCAST: (1 << 29) + 1024}
_NOISE = (1 << 29) + (1 << 20)


class Wire(NamedTuple):
    """An encoded message."""

    encoded: Encoded
    rest: list[Any]
    """Arrays of the message that are not floating-point numbers; they go along as they are."""


@recipe
class Aggregator:
    """What happens to messages on their way; `chain` makes one of single steps.

    Attributes:
        encoders: what clients do to updates and full gradients, in order.
        down: what the server does to what it broadcasts.
        combiner: how the server makes one message of many.
        privacy: the noise that the server adds, for differential privacy.
        error_feedback: whether each client adds what its encoding lost to its next update.
    """

    encoders: tuple[Encoder, ...] = ()
    down: tuple[Encoder, ...] = ()
    combiner: Combiner = Mean()
    privacy: Gaussian | None = None
    error_feedback: bool = static(default=False)

    @property
    def by_client(self) -> bool:
        """Whether every client's own gradient is needed, and not only the sum of all of them."""
        return bool(self.encoders) or not self.combiner.linear

    @property
    def clips(self) -> list[Clip]:
        """The encoders that clip."""
        return [one for one in self.encoders if isinstance(one, Clip)]

    def clip_norm(self, kind: str) -> Any:
        """The norm that messages of a kind are clipped to."""
        return self.clips[0].bound(kind)

    def at_round(self, round_number: int) -> Aggregator:
        """The aggregator of one round: schedules are replaced by that round's numbers."""
        if not self.by_client:
            return self
        encoders = tuple(at_round(one, round_number) for one in self.encoders)
        return dataclasses.replace(self, encoders=encoders, combiner=at_round(self.combiner, round_number))

    def start(self) -> Spending | tuple[()]:
        """What the aggregator carries from round to round, before the first one: nothing unless it is private."""
        if self.privacy is None:
            return ()
        norms = Norms(*(np.asarray(norm, np.float32) for norm in self.privacy.norms()))
        return Spending(norms, np.zeros(MOST_RELEASES + 1, np.int32))

    @property
    def adaptive(self) -> bool:
        """Whether clipping norms follow those of the messages from round to round."""
        return self.privacy is not None and self.privacy.quantile is not None

    def current(self, state: Any) -> Aggregator:
        """The aggregator with the clipping norms that it has adapted so far."""
        return self.with_norms(state.norms) if self.adaptive else self

    def with_norms(self, norms: Norms) -> Aggregator:
        """An adaptive aggregator that clips to these norms."""
        assert self.privacy is not None
        clipping = self.privacy.clipping(norms)
        encoders = tuple(clipping if isinstance(one, Clip) else one for one in self.encoders)
        return dataclasses.replace(self, encoders=encoders)

    def spend(self, state: Any, releases: int) -> Any:
        """The state after a round in which so many messages were released."""
        if self.privacy is None:
            return state
        counts = np.array(state.rounds)
        counts[releases] += 1
        return state._replace(rounds=counts)

    def adapt(self, state: Any, kind: str, key: jax.Array, unclipped: Any, reported: Any, planned: Any) -> Any:
        """The state with the clipping norm of a kind of message moved towards its quantile.

        Args:
            key: the round's.
            unclipped: how many of the messages were not clipped.
            reported: how many messages there were.
            planned: how many were planned.
        """
        if self.privacy is None or not self.adaptive:
            return state
        norm = _next_norm(self.privacy, state.norms.of(kind), _noise_key(key, 0), unclipped, reported, planned, kind)
        return state._replace(norms=state.norms._replace(**{kind: np.asarray(norm, np.float32)}))

    def epsilon(self, state: Any, sampling: Sampling | None) -> float:
        """ε of everything that was released so far; NaN where nothing is private."""
        if self.privacy is None or sampling is None:
            return math.nan
        ledger = Ledger(self.privacy.noise_multiplier, sampling, np.asarray(state.rounds))
        return epsilon(ledger, self.privacy.delta)

    def encode(self, message: Any, sender: Sender) -> Wire:
        """What is sent of a message, any pytree of arrays."""
        floats, rest, _ = _parted(message)
        return Wire(encode_chain(self._encoders_of(sender), floats, sender), rest)

    def decode(self, wire: Wire, like: Any, sender: Sender) -> Any:
        """What the receiver makes of it; `like` has the structure, shapes and types of the message."""
        floats, _, joined = _parted(like)
        shapes = [jax.ShapeDtypeStruct(jnp.shape(leaf), leaf.dtype) for leaf in floats]
        return joined(decode_chain(self._encoders_of(sender), wire.encoded, shapes, sender), wire.rest)

    def _encoders_of(self, sender: Sender) -> tuple[Encoder, ...]:
        return self.down if sender.kind == BROADCAST else self.encoders

    def send(self, arrays: list[Any], residual: Any, sender: Sender) -> tuple[Wire, Any]:
        """The client's half of a message's way: what it sends, and what it keeps of what the encoding lost.

        Args:
            arrays: of an update or a full gradient, each once; see `distinct`.
            residual: what the encoding of the client's earlier updates lost, one array for each that is sent; `()`
                without error feedback.
            sender: the client.
        """
        if not self.error_feedback or sender.kind != UPDATE:
            return self.encode(arrays, sender), residual
        whole = list(map(jnp.add, arrays, residual))
        wire = self.encode(whole, sender)
        return wire, list(map(jnp.subtract, whole, self.decode(wire, whole, sender)))

    def receive(self, wire: Wire, like: list[Any], sender: Sender) -> list[Any]:
        """The server's half: what it makes of what a client sent; `like` has the shapes and types of its arrays."""
        received = self.decode(wire, like, sender)
        if self.privacy is None:
            return received
        floats, rest, joined = _parted(received)  # clipped once more: decoding may have lengthened the message
        return joined(scaled(floats, self.clip_norm(sender.kind)), rest)

    def reason_of(self, received: Any, kind: str, bound: Any) -> jax.Array:
        """Why the gate refuses a message that was received, a `Reason` as a number; zero if it is accepted.

        Args:
            received: a pytree of arrays. An update is a pair, `(Reply.send, Reply.add)`, of which the first is bounded
                but for the numbers in it that stand alone.
            kind: of message.
            bound: the largest norm that the gate lets through.
        """
        sent, beside = received if kind == UPDATE else (received, ())
        bounded, numbers = by_length(sent)
        return jnp.where(finite((numbers, beside)), judge(bounded, bound), Reason.NOT_FINITE)

    def transmit(self, message: Any, residual: Any, sender: Sender) -> tuple[Any, Any]:
        """Both halves at once, as in a simulation: what the server receives, and what the client keeps.

        Args:
            message: an update or a full gradient, a pytree.
            residual: as in `send`.
            sender: who sends it.
        """
        if not self.encoders:
            return message, residual
        arrays, restored = distinct(message)
        wire, residual = self.send(arrays, residual, sender)
        return restored(self.receive(wire, arrays, sender)), residual

    def deliver(self, message: Any, residual: Any, sender: Sender, bound: Any) -> Delivered:
        """A client's message on its way to the server in a simulation: encoded, decoded and judged.

        It is done to each update, and to each gradient if `by_client`. In a deployment the client does `send`, and the
        server `receive` and `reason_of`.

        Args:
            message: a pytree of arrays, as `reason_of` expects it.
            residual: what earlier encodings lost; see `send`.
            sender: who sends it.
            bound: the largest norm that the gate lets through.
        """
        received, residual = self.transmit(message, residual, sender)
        reason = jnp.where(finite(residual), self.reason_of(received, sender.kind, bound), Reason.NOT_FINITE)
        return Delivered(received, residual, reason, self.unclipped(message, sender))

    def unclipped(self, message: Any, sender: Sender) -> Any:
        """Whether no encoder clips a message; False or True, or a traced scalar."""
        values = _parted(distinct(message)[0])[0]
        return functools.reduce(jnp.logical_and, [within(values, one.bound(sender.kind)) for one in self.clips], True)

    def noisy(self, total: Any, kind: str, key: jax.Array, planned: Any, number: int) -> Any:
        """The sum of clipped messages, each divided by the planned number of clients, with noise on every entry.

        Args:
            key: the round's.
            number: which message of its kind it is; each gets noise of its own.
        """
        assert self.privacy is not None
        return self.privacy.add_noise(total, _noise_key(key, number), kind, self.clip_norm(kind), planned)


class Delivered(NamedTuple):
    """A client's message as the server received it, with the gate's verdict."""

    message: Any
    """The decoded message."""
    residual: Any
    """What the encoding lost; the client keeps it for its next update if the aggregator has error feedback."""
    reason: Any
    """Why the gate refuses it, a `Reason` as a number; zero if it is accepted."""
    unclipped: Any
    """Whether it was short enough not to be clipped."""


class Spending(NamedTuple):
    """What a private aggregator carries from round to round; it is part of every checkpoint."""

    norms: Norms
    """The clipping norms of the next round."""
    rounds: np.ndarray
    """Number of rounds with 0, 1, 2 and 3 releases [4], the ledger of what privacy has spent."""


def _noise_key(key: jax.Array, number: int) -> jax.Array:
    return jax.random.fold_in(key, _NOISE + number)


@functools.partial(jax.jit, static_argnames="kind")
def _next_norm(
    privacy: Gaussian, norm: Any, key: jax.Array, unclipped: Any, reported: Any, planned: Any, kind: str
) -> jax.Array:
    return privacy.next_norm(norm, privacy.noisy_fraction(unclipped, reported, key, kind, planned))


PLAIN = Aggregator()  # the default: the weighted mean of messages that nothing happens to


def sender_of(kind: str, key: jax.Array, client: Any, number: int = 0) -> Sender:
    """The sender of a message, with the random key of this message alone.

    Args:
        kind: of message.
        key: the round's.
        client: position in the population, or `SERVER`.
        number: which message of that kind it is, for example at which point a gradient was asked for.
    """
    own = key if kind == BROADCAST else jax.random.fold_in(key, client)
    return Sender(kind, client, jax.random.fold_in(own, _STREAMS[kind] + number))


def distinct(message: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """The arrays of a message, of which one that is repeated is sent once, and a function that restores the message."""
    leaves, structure = jax.tree.flatten(message)
    once = {id(leaf): leaf for leaf in leaves}
    places = {key: place for place, key in enumerate(once)}
    return list(once.values()), lambda sent: structure.unflatten([sent[places[id(leaf)]] for leaf in leaves])


def by_length(message: Any) -> tuple[list[Any], list[Any]]:
    """The parts of a message that have a length, and its numbers that stand alone, such as a count, which have none."""
    parts = jax.tree.leaves(message, is_leaf=lambda part: isinstance(part, Vector))
    alone = [not isinstance(part, Vector) and jnp.shape(part) == () for part in parts]
    with_length, without = ([p for p, yes in zip(parts, alone, strict=True) if yes is side] for side in (False, True))
    return with_length, without


def _parted(message: Any) -> tuple[list[Any], list[Any], Callable[[list[Any], list[Any]], Any]]:
    """The floating-point arrays of a pytree, the others, and a function that joins the two again."""
    leaves, structure = jax.tree.flatten(message)
    is_float = [jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves]

    def joined(floats: list[Any], rest: list[Any]) -> Any:
        floats_, rest_ = iter(floats), iter(rest)
        return jax.tree.unflatten(structure, [next(floats_ if yes else rest_) for yes in is_float])

    floats, rest = ([leaf for leaf, yes in zip(leaves, is_float, strict=True) if yes is side] for side in (True, False))
    return floats, rest, joined


EXACT = -1
"""The stream number that marks a broadcast array that is sent without encoding."""


class Broadcaster:
    """The server's arrays on their way to the clients of one round.

    An array that is sent twice, such as x with the request for gradients and again with the message, is encoded once.
    Arrays are recognised by their identity; those that were sent are held, so that their identities stay their own.

    Args:
        aggregator: its `down` encodes what is sent.
        key: the round's.
    """

    def __init__(self, aggregator: Aggregator, key: jax.Array) -> None:
        self._aggregator, self._key = aggregator, key
        self._seen: dict[int, tuple[jax.Array, jax.Array]] = {}  # by identity: an array, and as it is received
        self._encoded: dict[int, tuple[jax.Array, int]] = {}  # by the identity of what is received: array and stream

    def received(self, message: Any, exact: Any = ()) -> Any:
        """What clients receive of a message, any pytree; `exact` holds arrays of it that must arrive as they are."""
        if not self._aggregator.down:
            return message
        for leaf in jax.tree.leaves(exact):
            self._seen.setdefault(id(leaf), (leaf, leaf))
        for leaf in jax.tree.leaves(message):
            if id(leaf) not in self._seen:
                stream = len(self._seen)
                received = _broadcast(self._aggregator, leaf, self._key, stream)
                self._seen[id(leaf)] = leaf, received
                self._encoded[id(received)] = leaf, stream
        return jax.tree.map(lambda leaf: self._seen[id(leaf)][1], message)

    def stream(self, received: jax.Array) -> int:
        """The number of the random stream by which an array that clients receive is encoded, or `EXACT`."""
        return self._encoded[id(received)][1] if id(received) in self._encoded else EXACT

    def wire(self, received: jax.Array) -> Any:
        """What is sent for clients to receive this array: its encoded form, or the array itself."""
        if id(received) not in self._encoded:
            return received
        array, stream = self._encoded[id(received)]
        return _encode(self._aggregator, array, self._key, stream)


def wire_like(aggregator: Aggregator, like: Any, stream: int) -> Any:
    """The structure of what is sent for an array of this shape and type."""
    return like if stream == EXACT else jax.eval_shape(_encode, aggregator, like, jax.random.key(0), stream)


def receive_broadcast(aggregator: Aggregator, wire: Any, like: Any, key: jax.Array, stream: int) -> jax.Array:
    """The client's half: the array that was sent, of the shape and type of `like`; `key` is the round's."""
    if stream == EXACT:
        return wire
    return _decode(aggregator, wire, key, stream, like=jax.ShapeDtypeStruct(like.shape, like.dtype))


@jax.jit
def _encode(aggregator: Aggregator, array: jax.Array, key: jax.Array, stream: Any) -> Wire:
    return aggregator.encode(array, sender_of(BROADCAST, key, SERVER, stream))


@functools.partial(jax.jit, static_argnames="like")
def _decode(aggregator: Aggregator, wire: Wire, key: jax.Array, stream: Any, like: Any) -> jax.Array:
    return aggregator.decode(wire, like, sender_of(BROADCAST, key, SERVER, stream))


@jax.jit
def _broadcast(aggregator: Aggregator, array: jax.Array, key: jax.Array, stream: Any) -> jax.Array:
    """Both halves at once, as in a simulation, where nothing is packed."""
    sender = sender_of(BROADCAST, key, SERVER, stream)
    return aggregator.decode(aggregator.encode(array, sender), array, sender)
