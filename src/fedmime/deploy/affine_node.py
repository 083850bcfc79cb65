"""A client that is not written in JAX: it answers requests by following the affine rule with gradients of its own.

Everything but the gradients is here, in NumPy: messages, mini-batches, local steps, and what the client keeps. A
framework adds a `Learner`, as `torch_node.py` does for PyTorch.

`Ask.affine` is `{"model": …, "rule": …}`: whether the payload begins with x, and the fields of a `Rule`, or null where
nobody trains. The payload holds x, the rule's offset and its scale, as far as they are there. The payload of the answer
holds the full gradient at x if one was asked for, then the movement y − x, then what SCAFFOLD adds.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from fedmime.batching import generator, mini_batches
from fedmime.deploy.kept import DiskShelf, MemoryShelf, Shelf, prune
from fedmime.deploy.messages import (
    AFFINE,
    NEVER,
    NOTHING,
    Answer,
    Ask,
    Hello,
    Profile,
    is_a,
    opened,
    packed,
    parameters_digest,
    refusal,
)
from fedmime.deploy.protocol import FrameError, unpack
from fedmime.deploy.rule import Arrays, Rule, Signature, Trained
from fedmime.errors import ConfigError, DataError
from fedmime.runs.notes import warnings
from fedmime.version import exact

CHUNK = 128  # examples of a full gradient at a time
_MOST_MODELS = 3  # x, offset and scale: the largest request


class Learner(Protocol):
    """A model, a loss and the client's examples in some framework. Its arrays are that framework's."""

    @property
    def examples(self) -> int:
        """n, the number of examples."""
        ...

    @property
    def identity(self) -> str:
        """The SHA-256 digest of the examples, by which the server notices that they have changed."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of the model."""
        ...

    def bind(self, server: Signature) -> None:
        """Pair the arrays of the server's model with its own; `ConfigError` where they do not fit."""
        ...

    def take(self, arrays: list[np.ndarray]) -> Arrays:
        """The server's arrays as its own."""
        ...

    def give(self, arrays: Arrays) -> list[np.ndarray]:
        """Its own arrays as the server's."""
        ...

    def gradient(self, y: Arrays, rows: np.ndarray) -> tuple[float, Arrays]:
        """The mean loss at y of the examples at some positions, and its gradient."""
        ...


class _Refused(Exception):
    """The client does not do what it was asked for; the server learns why."""

    def __init__(self, reason: str, words: str) -> None:
        super().__init__(words)
        self.reason = reason


class _Joined(NamedTuple):
    """The run that a client has joined."""

    hello: Hello
    model: Signature
    shelf: Shelf
    """What the client has kept in this run."""


class _Round(NamedTuple):
    """The round that the client is in."""

    number: int
    x: Arrays
    """The server model, which the first request of a round brings."""


class AffineNode:
    """The client's half of a deployment, for a learner of any framework.

    Args:
        learner: computes gradients.
        name: the client's name. It must stay the same when the node is started again, and no other node may have it.
        state: a directory in which the client keeps what belongs to it between rounds; None keeps it in memory, where
            it is lost when the process ends.
    """

    def __init__(self, learner: Learner, name: str, state: Path | None = None) -> None:
        self._learner, self._name, self._state = learner, name, state
        self._shelves: dict[str, Shelf] = {}  # by run
        self._joined: _Joined | None = None
        self._round: _Round | None = None

    def answer(self, request: bytes) -> bytes:
        """The reply to a request. What goes wrong becomes a refusal in one line, which tells nothing of the data."""
        nonce = ""
        try:
            frame = unpack(request, _MOST_MODELS * self._learner.nbytes)
            message = opened(frame, Hello) if is_a(frame, Hello) else opened(frame, Ask)
            nonce = message.nonce
            return self._join(message) if isinstance(message, Hello) else self._work(message, frame.payload)
        except _Refused as error:
            return refusal(nonce, error.reason, error)
        except FrameError as error:
            return refusal(nonce, "structure", error)
        except Exception as error:  # a request must never end a node, and a message might quote the client's data
            warnings.warning("client %r could not answer: %s: %s", self._name, type(error).__name__, error)
            reason = "data" if isinstance(error, DataError) else "failed"
            return refusal(nonce, reason, f"a {type(error).__name__}, of which the node's own log says more")

    def _join(self, hello: Hello) -> bytes:
        """Compare versions and models, and say who this client is."""
        if hello.version != exact():
            words = f"this node has version {exact()} of fedmime, the server {hello.version}"
            raise _Refused("failed", f"{words}; they must be the same")
        try:
            model = Signature.of(hello.arrays or {})
            self._learner.bind(model)
        except ConfigError as error:  # it speaks of names and shapes of models
            raise _Refused("failed", str(error)) from None
        if hello.run not in self._shelves:
            self._shelves[hello.run] = MemoryShelf() if self._state is None else DiskShelf(self._state / hello.run)
        self._joined, self._round = _Joined(hello, model, self._shelves[hello.run]), None
        facts = (self._name, self._learner.examples, self._learner.identity, hello.version, AFFINE)
        return packed(Profile(hello.run, hello.nonce, *facts, hello.configuration, parameters_digest(model.arrays)))

    def _work(self, ask: Ask, payload: bytes) -> bytes:
        """The full gradient at x, local training from it, or both."""
        if self._joined is None or self._joined.hello.run != ask.run:
            raise _Refused("failed", f"this client does not know run {ask.run}; say hello first")
        if ask.affine is None:
            raise FrameError("a client without JAX takes affine rules only")
        hello, model, _ = self._joined
        rule, count = Rule.read(ask.affine.get("rule")) if ask.train else (None, 0)
        begins = ask.affine.get("model") is True
        arrays = [self._learner.take(each) for each in model.unpack(payload, begins + count)]
        x = self._entered(ask, arrays[0] if begins else None)
        sent = [self._full_gradient(x)] if ask.gradients != NOTHING else []
        steps, loss, drift = 0, 0.0, 0.0
        if rule is not None:
            rows, counts = _batches(hello, ask, self._learner.examples)
            trained = self._train(ask, rule.with_arrays(arrays[begins:]), x, rows, counts)
            sent += [trained.moved] if trained.added is None else [trained.moved, trained.added]
            steps, loss, drift = len(counts), trained.loss, trained.drift
        if not np.isfinite([loss, drift]).all():
            raise _Refused("not_finite", "local training led to numbers that are not finite")
        answer = Answer(ask.run, ask.round, ask.nonce, self._learner.examples, steps, loss, drift, True, True)
        return packed(answer, model.pack(*map(self._learner.give, sent)))

    def _entered(self, ask: Ask, sent: Arrays | None) -> Arrays:
        """The server model x of the request's round: what was sent, or what came with an earlier request of it."""
        current = self._round
        if current is not None and ask.round < current.number:
            raise _Refused("round", f"round {ask.round} is over; this client is in round {current.number}")
        x = sent if sent is not None or current is None or current.number != ask.round else current.x
        if x is None:
            raise _Refused("failed", f"the model of round {ask.round} has not been sent to this client")
        self._round = _Round(ask.round, x)
        return x

    def _full_gradient(self, x: Arrays) -> Arrays:
        """∇fᵢ(x), a weighted mean over chunks of the client's examples."""
        n, total = self._learner.examples, [0 * each for each in x]
        for start in range(0, n, CHUNK):
            rows = np.arange(start, min(start + CHUNK, n))
            g = self._learner.gradient(x, rows)[1]
            total = [a + len(rows) / n * b for a, b in zip(total, g, strict=True)]
        return total

    def _train(self, ask: Ask, rule: Rule, x: Arrays, rows: np.ndarray, counts: np.ndarray) -> Trained:
        """Local steps, with what this client keeps where the rule needs it."""
        assert self._joined is not None
        hello, model, shelf = self._joined

        def gradient(y: Arrays, k: int) -> tuple[float, Arrays]:
            return self._learner.gradient(y, rows[k, : counts[k]])

        c_i = self._learner.take(_kept(shelf, ask.kept_from, model)) if rule.keeps else None
        prune(shelf, ask.kept_from, ask.since)
        trained = rule.train(x, len(counts), gradient, c_i, drift=hello.drift)
        if trained.kept is not None:
            shelf.write(ask.round, model.pack(self._learner.give(trained.kept)))
        return trained


def _kept(shelf: Shelf, round_number: int, model: Signature) -> Arrays:
    """What the client has kept from a round; zeros if it was never seen before."""
    if round_number == NEVER:
        return [np.zeros(each.shape, model.dtype) for each in model.parameters]
    found = shelf.read(round_number)
    if found is None:
        raise _Refused("failed", f"this client no longer has what it kept in round {round_number}")
    return model.unpack(found, 1)[0]


def _batches(hello: Hello, ask: Ask, examples: int) -> tuple[np.ndarray, np.ndarray]:
    """The mini-batches of this client in this round, the same that a client written in JAX would take."""
    random = generator(hello.seed, ask.round, ask.client)
    return mini_batches(examples, hello.batch_size, hello.epochs, hello.steps, random)
