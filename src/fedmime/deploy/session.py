"""A client's part in one run: what it computes when the server asks, and what it keeps.

What a client computes is what a simulation computes for it, by the same back end: a cohort of one member, whose
mini-batches and random numbers follow from the run's seed, the round and the client's position in the population.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import numpy as np

from fedmime.aggregation import wire
from fedmime.aggregation.aggregator import EXACT, Aggregator, receive_broadcast, wire_like
from fedmime.aggregation.encoder import GRADIENT, UPDATE
from fedmime.aggregation.gate import Reason
from fedmime.aggregation.privacy import Norms
from fedmime.algorithms.abstract import anchor_of
from fedmime.algorithms.algorithm import Message
from fedmime.deploy import post
from fedmime.deploy.kept import Shelf, prune
from fedmime.deploy.layout import Places, layout_of
from fedmime.deploy.messages import NEVER, NOTHING, PRIME, Answer, Ask, Hello, Mask, Masked, packed
from fedmime.deploy.protocol import FrameError
from fedmime.deploy.secure.contents import contribution_of
from fedmime.deploy.secure.disclosures import Disclosures
from fedmime.deploy.secure.masking import MOST_BESIDE, Contribution, Masking
from fedmime.deploy.terms import Terms, examples_of_round, schedule_of
from fedmime.engine.arguments import MOST_EXAMPLES
from fedmime.engine.backends.backend import Answer as Found
from fedmime.engine.backends.backend import Backend, Scalars, Work
from fedmime.engine.backends.specification import Needs, Specification
from fedmime.engine.cohort import Batches, Cohort, Columns, Member, first_column
from fedmime.engine.intake import Intake
from fedmime.engine.memory import RamMemory
from fedmime.engine.sampling import Schedule
from fedmime.engine.work import run_key, work_of
from fedmime.vector import Vector


class Refused(Exception):
    """The client does not do what it was asked for; the server learns why."""

    def __init__(self, reason: Reason, words: str) -> None:
        super().__init__(words)
        self.reason = reason


class _Own(NamedTuple):
    """The source of a cohort that is one client."""

    columns: Columns
    schedule: Schedule
    round: int
    client: int

    def examples(self, place: int) -> Columns:
        return self.columns

    def batches(self, place: int) -> Batches:
        return self.schedule.batches(self.round, self.client, len(first_column(self.columns)))


class _Round(NamedTuple):
    """The round that the client is in."""

    client: int
    work: Work
    held: dict[int, Any]
    """The arrays that the server has sent in this round, by slot."""

    def filled(self, places: Places) -> Any:
        """A pytree of arrays that the server has sent."""
        if missing := set(places.slots) - self.held.keys():
            raise Refused(Reason.FAILED, f"arrays {sorted(missing)} of this round have not been sent")
        return places.filled(self.held)


class _Kept(NamedTuple):
    """What the client keeps between rounds."""

    value: Any
    """The algorithm's, `Reply.keep`."""
    residual: Any
    """What the encoding of its updates has lost, with error feedback."""


class Session:
    """A client in a run, from the hello that began it until another one.

    Args:
        hello: the server's.
        terms: what both sides have agreed on.
        columns: the client's examples.
        name: the client's, for the node's own warnings.
        where: the back end that computes the client.
        shelf: what the client has kept in this run.
        disclosures: which sums it has helped to reveal.
    """

    def __init__(
        self,
        hello: Hello,
        terms: Terms,
        columns: Columns,
        name: str,
        where: Specification,
        shelf: Shelf,
        disclosures: Disclosures,
    ) -> None:
        self.run = hello.run
        self._algorithm, self._aggregator = terms.algorithm, terms.aggregator
        self._columns, self._name, self._shelf = columns, name, shelf
        self._examples = len(first_column(columns))
        self._layout = layout_of(terms.algorithm, terms.model)
        self._schedule, self._key = schedule_of(hello), run_key(hello.seed)
        self._steps = int(self._schedule.lengths(np.array([self._examples]))[0])
        if (seen := examples_of_round(hello, self._examples)) > MOST_EXAMPLES:
            raise Refused(Reason.FAILED, f"a round would take {seen:,} examples; accepted are {MOST_EXAMPLES:,}")
        server = jax.eval_shape(lambda model: terms.algorithm.init(model).server, terms.model)
        self._anchor = anchor_of(terms.algorithm, server)
        needs = Needs(Intake.of_run(terms.problem.check, pooled=False), hello.drift)
        self._backend: Backend = where.start(terms.problem, terms.model, needs)
        residual = list(self._layout.update.shapes) if self._layout.update and self._aggregator.error_feedback else ()
        self._blank = _Kept(self._layout.blank, residual)
        self._current: _Round | None = None
        self._masking = None if terms.secure is None else Masking(terms.secure, disclosures, self._contribution)

    @functools.cached_property
    def most_payload(self) -> int:
        """The bytes of a request that sends every array there is, in its longer form, and what masks need beside."""
        forms = [[wire_like(self._aggregator, a, s) for s in (EXACT, 0)] for a in self._layout.shapes]
        return sum(max(map(wire.nbytes, each)) for each in forms) + (MOST_BESIDE if self._masking else 0)

    def masked(self, mask: Mask, payload: bytes) -> bytes:
        """The reply to a request of a secure run."""
        if self._masking is None:
            raise Refused(Reason.FAILED, "this run was begun without masks")
        return packed(Masked(mask.run, mask.round, mask.nonce), self._masking.answer(mask, payload))

    def answer(self, ask: Ask, payload: bytes) -> bytes:
        """The reply to a request: full gradients, training, or both."""
        if self._masking is not None:
            raise Refused(Reason.FAILED, "this run was begun with masks, and this client sends nothing without masks")
        reply, gradients, update = self.outcome(ask, payload)
        sent = [*gradients, *([] if update is None else [update])]
        return packed(reply, wire.pack(jax.device_get([each.wire for each in sent])))

    def outcome(self, ask: Ask, payload: bytes) -> post.Outcome:
        """What the client has to send, before it is packed; what it keeps is written."""
        aggregator = self._aggregator_of(ask)
        current = self._round_of(ask)
        received = self._received(aggregator, ask, payload, current.work.key)
        current = current._replace(held=current.held | received)
        points, message = self._asked(ask, current)
        kept = self._read(ask) if ask.train else _Kept((), ())
        self._enter(current)  # nothing that was refused so far has changed anything
        found = self._computed(ask, current, points, message, kept)
        send = functools.partial(post.send, aggregator, key=current.work.key, client=ask.client)
        gradients = [
            send(self._layout.gradient.arrays(gradient), (), number=number, kind=GRADIENT)
            for number, gradient in enumerate(jax.device_get(found.gradients))
        ]
        unclipped = all(bool(sent.unclipped) for sent in gradients)
        reply = Answer(ask.run, ask.round, ask.nonce, self._examples, 0, 0.0, 0.0, unclipped, True)
        if found.totals is None:
            return post.Outcome(reply, gradients, None)
        assert self._layout.update is not None
        totals = jax.device_get(found.totals)
        update = send(self._layout.update.arrays((totals.send, totals.add)), kept.residual, number=0, kind=UPDATE)
        reply = self._trained(reply, Scalars(*map(float, totals.scalars)), update)
        self._backend.settle(current.work, True)
        self._write(ask, update.residual)
        return post.Outcome(reply, gradients, update)

    def _contribution(self, ask: Ask, payload: bytes) -> Contribution:
        """What the client has to send in a secure run, before it is masked."""
        outcome = self.outcome(ask, payload)
        assert self._current is not None
        key = self._current.work.key
        found = contribution_of(outcome, self._layout, self._aggregator_of(ask), key, ask.client)
        if not all(np.isfinite(array).all() for array in jax.tree.leaves((found.gradients, found.send, found.add))):
            raise Refused(Reason.NOT_FINITE, "a number that this client would send is not finite")
        return found

    def _aggregator_of(self, ask: Ask) -> Aggregator:
        """The aggregator of this round."""
        aggregator = self._aggregator.at_round(ask.round)
        if not aggregator.adaptive:
            return aggregator
        if ask.norms is None:
            raise FrameError("ask: norms must be given, because this run's clipping norms adapt")
        return aggregator.with_norms(Norms(*(np.asarray(norm, np.float32) for norm in ask.norms)))

    def _round_of(self, ask: Ask) -> _Round:
        """The round of a request: the one that the client is in, or a later one."""
        current = self._current
        if current is not None and ask.round < current.work.round:
            raise Refused(Reason.ROUND, f"round {ask.round} is over; this client is in round {current.work.round}")
        if current is None or (ask.round, ask.client) != (current.work.round, current.client):
            return _Round(ask.client, self._work(ask), {})
        return current

    def _enter(self, entered: _Round) -> None:
        """Go on in a round; what belonged to an earlier one is let go."""
        if self._current is not None and self._current.work is not entered.work:
            self._backend.settle(self._current.work, False)
        self._current = entered

    def _work(self, ask: Ask) -> Work:
        """The work of a cohort with this client alone, in the role that it has in the whole one."""
        split, n = self._algorithm.split, self._examples
        trains = ask.train or not split  # Mime's clients train, too, after they were asked for gradients
        steps = self._steps if trains else 0
        names: Any = {ask.client: self._name}
        cohort = Cohort(
            (Member(ask.client, n, steps, 0, sends_gradient=not split or not trains),),
            1,
            _Own(self._columns, self._schedule, ask.round, ask.client),
            batch_size=self._schedule.batch_size or n,
            each_once=self._schedule.each_once,
            ids=names,
        )
        return work_of(self._algorithm, self._anchor, ask.round, cohort, self._key, prime=ask.gradients == PRIME)

    def _received(self, aggregator: Aggregator, ask: Ask, payload: bytes, key: jax.Array) -> dict[int, Any]:
        """The arrays of a request by slot, decoded."""
        shapes = self._layout.shapes
        if any(not 0 <= slot < len(shapes) for slot, _ in ask.arrays):
            raise FrameError(f"ask: slots of arrays must lie in 0..{len(shapes) - 1}, got {list(ask.arrays)!r:.80}")
        likes = [wire_like(aggregator, shapes[slot], stream) for slot, stream in ask.arrays]
        if len(payload) != wire.nbytes(likes):
            raise FrameError(f"ask: its arrays have {wire.nbytes(likes)} bytes, got {len(payload)}")
        return {
            slot: receive_broadcast(aggregator, sent, shapes[slot], key, stream)
            for (slot, stream), sent in zip(ask.arrays, wire.unpack(payload, likes), strict=True)
        }

    def _asked(self, ask: Ask, current: _Round) -> tuple[tuple[Vector, ...], Message | None]:
        """Where full gradients are asked for, and the message from which to train."""
        message, points = None, ()
        if ask.gradients != NOTHING:
            points = current.filled(self._layout.prime if ask.gradients == PRIME else self._layout.points)
        if ask.train:
            if self._layout.message is None or not current.work.cohort.training:
                raise Refused(Reason.FAILED, "a client in this role does not train")
            message = current.filled(self._layout.message)
        return points, message

    def _computed(
        self, ask: Ask, current: _Round, points: tuple[Vector, ...], message: Message | None, kept: _Kept
    ) -> Found:
        """What the back end computes for the client."""
        self._backend.memory = RamMemory(kept.value) if jax.tree.leaves(kept.value) else None
        found = self._backend.ask(current.work._replace(pick=ask.pick), points, message)
        if reason := found.refused().get(ask.client):
            raise Refused(reason, "the client's examples or its result cannot be used")
        return found

    def _trained(self, reply: Answer, scalars: Scalars, sent: post.Sent) -> Answer:
        """A reply with what training adds to it."""
        if not (sent.sound and math.isfinite(scalars.loss) and math.isfinite(scalars.drift)):
            raise Refused(Reason.NOT_FINITE, "the client's loss, or what it keeps, is not finite")
        told = {"steps": int(scalars.steps), "loss": scalars.loss, "drift": scalars.drift}
        return reply._replace(**told, update_unclipped=bool(sent.unclipped))

    def _read(self, ask: Ask) -> _Kept:
        """What the client has kept from the round that the server names."""
        if ask.kept_from == NEVER or not jax.tree.leaves(self._blank):
            kept = jax.tree.map(lambda like: np.zeros(like.shape, like.dtype), self._blank)
        elif (found := self._shelf.read(ask.kept_from)) is None:
            raise Refused(Reason.FAILED, f"the client no longer has what it kept in round {ask.kept_from}")
        else:
            kept = wire.unpack(found, self._blank)
        prune(self._shelf, ask.kept_from, ask.since)
        return kept

    def _write(self, ask: Ask, residual: Any) -> None:
        """Keep what this round has made, which counts once the server has accepted the round."""
        if jax.tree.leaves(self._blank):
            value = () if self._backend.memory is None else self._backend.memory.read([ask.client])[0]
            self._shelf.write(ask.round, wire.pack(jax.device_get(_Kept(value, residual))))
