"""What a deployed server makes of replies: what becomes of every message that arrives in one exchange.

A reply counts if it comes from a node that was asked, is the first one of that node, belongs to this very request, and
holds what was asked for. What is decided by the sender's identity alone comes first, then what the header says, then
the length of the payload; only a payload of exactly the right length is decoded, and then passes the gate as a
simulated one does. Nothing that a node can send raises an error here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from fedmime.aggregation import wire
from fedmime.aggregation.aggregator import Aggregator
from fedmime.aggregation.encoder import GRADIENT, UPDATE
from fedmime.aggregation.gate import Reason
from fedmime.deploy import post
from fedmime.deploy.layout import Layout
from fedmime.deploy.messages import Answer, Refusal, is_a, opened
from fedmime.deploy.protocol import FrameError, TooLarge, unpack
from fedmime.deploy.transport import Failure
from fedmime.engine.cohort import Member
from fedmime.vector import Vector

_MOST_SCALAR = float(np.finfo(np.float32).max) / 2**24  # so that no sum over a cohort overflows
_LABELS = {reason.label: reason for reason in (Reason.DATA, Reason.STRUCTURE, Reason.NOT_FINITE, Reason.MASKS)}


class Verdict(Exception):
    """A message does not count."""

    def __init__(self, reason: Reason, words: str) -> None:
        super().__init__(words)
        self.reason = reason


class Asked(NamedTuple):
    """What one node was asked for."""

    place: int
    """The client's place in the cohort."""
    member: Member
    nonce: str
    gradients: int
    """How many full gradients."""
    train: bool

    @property
    def roles(self) -> tuple[str, ...]:
        """The kinds of message that the client sends."""
        return (GRADIENT,) * bool(self.gradients) + (UPDATE,) * self.train


class Received(NamedTuple):
    """A reply that passed the gate, decoded."""

    answer: Answer
    gradients: tuple[Vector, ...]
    update: Any
    """The pair `(Reply.send, Reply.add)`, or None."""


class Reader(Protocol):
    """Reads the replies of one exchange, once it is certain that they answer its requests."""

    most: int
    """The bytes of the longest payload that any request of the run is answered with."""

    @property
    def kind(self) -> Any:
        """What sound replies are: `Answer` or `Masked`."""
        ...

    def read(self, asked: Asked, reply: Any, payload: bytes) -> Any:
        """What a reply says.

        Raises:
            Verdict: it does not count.
        """
        ...


class Opener:
    """Opens the payloads of one exchange; a `Reader`.

    Args:
        layout: of the algorithm's messages.
        aggregator: the round's.
        key: the round's.
        bound: the largest norm that passes.
    """

    kind = Answer

    def __init__(self, layout: Layout, aggregator: Aggregator, key: Any, bound: Any) -> None:
        self._layout, self._given, self._bound = layout, (aggregator, key), bound
        self._gradient = post.wire_of(aggregator, layout.gradient, GRADIENT)
        self._update = None if layout.update is None else post.wire_of(aggregator, layout.update, UPDATE)

        points = [len(places.slots) // len(layout.gradient.shapes) for places in (layout.points, layout.prime)]
        self.most = wire.nbytes(self.form(max(points), layout.update is not None))
        """The bytes of the longest payload that any request of this algorithm is answered with."""

    def form(self, gradients: int, train: bool) -> list[Any]:
        """The structure of the payload of so many gradients, and of an update if the client trains."""
        return [self._gradient] * gradients + [self._update] * train

    def read(self, asked: Asked, reply: Answer, payload: bytes) -> Received:
        """See `Reader.read`."""
        expected = asked.member.size, asked.member.steps if asked.train else 0
        if (reply.examples, reply.steps) != expected:
            words = "{} examples and {} steps"
            told = words.format(reply.examples, reply.steps)
            raise Verdict(Reason.WEIGHT, f"the client has {words.format(*expected)}, the reply says {told}")
        if not (abs(reply.loss) <= _MOST_SCALAR and abs(reply.drift) <= _MOST_SCALAR):
            words = f"its loss is {reply.loss:g} and its drift {reply.drift:g}, whose sums single precision cannot hold"
            raise Verdict(Reason.NOT_FINITE, words)
        return Received(reply, *self.open(asked, payload))

    def open(self, asked: Asked, payload: bytes) -> tuple[tuple[Vector, ...], Any]:
        """The gradients and the update in a payload.

        Raises:
            Verdict: it is too long or too short, or the gate refuses what it holds.
        """
        form = self.form(asked.gradients, asked.train)
        if (size := wire.nbytes(form)) != len(payload):
            reason = Reason.SIZE if len(payload) > size else Reason.SHAPE
            raise Verdict(reason, f"such a reply has {size} bytes, got {len(payload)}")
        sent, client = wire.unpack(payload, form), asked.member.client
        found = [self._received(each, client, number, GRADIENT) for number, each in enumerate(sent[: asked.gradients])]
        found += [self._received(each, client, 0, UPDATE) for each in sent[asked.gradients :]]
        if reason := Reason(max((int(reason) for _, reason in found), default=0)):
            words = "a number in it is not finite" if reason is Reason.NOT_FINITE else "its norm is beyond the bound"
            raise Verdict(reason, words)
        messages = [message for message, _ in found]
        return tuple(messages[: asked.gradients]), messages[-1] if asked.train else None

    def _received(self, sent: Any, client: int, number: int, kind: str) -> tuple[Any, Any]:
        parcel = self._layout.gradient if kind == GRADIENT else self._layout.update
        assert parcel is not None
        aggregator, key = self._given
        return post.receive(aggregator, sent, key, client, number, self._bound, kind=kind, parcel=parcel)


class Inbox:
    """The replies of one exchange.

    Args:
        run: the run's identity.
        round_number: the round.
        asked: what each node was asked for, by its authenticated id.
        targets: how many clients are wanted for each kind of message; who comes later is not needed.
        reader: reads replies.
        log: is told of everything that is refused: the node, why, and in which words.

    Attributes:
        received: what the reader keeps of sound replies, by the client's place in the cohort.
        refused: clients that are left out, by position in the population.
        strays: why messages were refused that are no node's first reply to this exchange.
        reported: how many clients have sent a reply, sound or not, by the kind of message that was wanted of them.
    """

    def __init__(
        self,
        run: str,
        round_number: int,
        asked: Mapping[int, Asked],
        targets: Mapping[str, int],
        reader: Reader,
        log: Callable[[int, Reason, str], None],
    ) -> None:
        self._belongs, self._asked, self._targets = (run, round_number), asked, targets
        self._reader, self._log = reader, log
        self._done: set[int] = set()  # nodes that have replied
        self._accepted: dict[str, int] = dict.fromkeys(targets, 0)
        self.received: dict[int, Any] = {}
        self.refused: dict[int, Reason] = {}
        self.strays: list[Reason] = []
        self.reported: dict[str, int] = dict.fromkeys(targets, 0)

    @property
    def complete(self) -> bool:
        """Whether nothing is left to wait for: all replies that are wanted are there, or every node has replied."""
        return self._satisfied(self._targets) or len(self._done) == len(self._asked)

    def take(self, node: int, reply: bytes | Failure) -> None:
        """Take what arrived from a node."""
        asked = self._asked.get(node)
        if asked is None:
            self._stray(node, Reason.UNASKED, "it was not asked")
        elif node in self._done:
            self._stray(node, Reason.DUPLICATE, "it has replied before")
        elif not self._satisfied(asked.roles):
            self._examine(node, asked, reply)

    def close(self, absent: Iterable[Asked] = ()) -> None:
        """End the exchange: who is still wanted and has not replied is late, and so is who was not connected."""
        waiting = [asked for node, asked in self._asked.items() if node not in self._done]
        for asked in [*waiting, *absent]:
            if not self._satisfied(asked.roles):
                self.refused[asked.member.client] = Reason.LATE

    def _examine(self, node: int, asked: Asked, reply: bytes | Failure) -> None:
        """Take the reply of a node that was asked and is wanted."""
        try:
            found = self._opened(asked, reply)
        except Verdict as verdict:
            reason, words = verdict.reason, str(verdict)
        except FrameError as error:
            reason, words = Reason.SIZE if isinstance(error, TooLarge) else Reason.STRUCTURE, str(error)
        else:
            reason, words = Reason.ACCEPTED, ""
            self.received[asked.place] = found
        if reason is Reason.ROUND:  # late or replayed; the node's reply to this exchange may still come
            self._stray(node, reason, words)
            return
        self._done.add(node)
        for role in asked.roles:
            self.reported[role] += not isinstance(reply, Failure)
            self._accepted[role] += reason is Reason.ACCEPTED
        if reason:
            self.refused[asked.member.client] = reason
            self._log(node, reason, words)

    def _satisfied(self, roles: Iterable[str]) -> bool:
        return all(self._accepted[role] >= self._targets[role] for role in roles)

    def _opened(self, asked: Asked, reply: bytes | Failure) -> Any:
        """What a reply that counts says; everything else raises."""
        if isinstance(reply, Failure):
            raise Verdict(Reason.FAILED, reply.reason)
        frame = unpack(reply, self._reader.most)
        if is_a(frame, Refusal):
            refusal = opened(frame, Refusal)
            if refusal.nonce not in ("", asked.nonce):
                raise Verdict(Reason.ROUND, "it refuses another request")
            raise Verdict(_LABELS.get(refusal.reason, Reason.FAILED), refusal.words)
        answer = opened(frame, self._reader.kind)
        if (answer.run, answer.round, answer.nonce) != (*self._belongs, asked.nonce):
            raise Verdict(Reason.ROUND, f"it answers another request, of round {answer.round}")
        return self._reader.read(asked, answer, frame.payload)

    def _stray(self, node: int, reason: Reason, words: str) -> None:
        self.strays.append(reason)
        self._log(node, reason, words)
