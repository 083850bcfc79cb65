"""The back end of a secure run: it learns sums over groups of clients, and nothing of a single one.

What a deployed back end asks for in one exchange takes four here. Clients may leave in between; if too few are left,
nothing was revealed and the round is abandoned.
"""

from __future__ import annotations

import functools
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from fedmime.aggregation.communication import Cost
from fedmime.aggregation.gate import Reason
from fedmime.algorithms.algorithm import Algorithm, Message
from fedmime.deploy.backend import DeployedBackend, Round, planned
from fedmime.deploy.dialect import Offer
from fedmime.deploy.layout import layout_of as layout_of_messages
from fedmime.deploy.messages import Mask, Masked, Stage, packed
from fedmime.deploy.replies import Asked, Inbox, Verdict
from fedmime.deploy.secure.contents import MaskedScalars, Messages, messages_of, parts_of
from fedmime.deploy.secure.options import MaskError, SecureSum
from fedmime.deploy.secure.parts import layout_of, sums_of_parts
from fedmime.deploy.secure.server import Aborted, Exchange, Request
from fedmime.deploy.secure.traffic import secure_cost
from fedmime.engine.backends import backend as engine
from fedmime.engine.backends.backend import Answer, Totals, Work
from fedmime.engine.samplers import over_selected
from fedmime.errors import ConfigError
from fedmime.runs.notes import notes
from fedmime.vector import Vector


class _Group(NamedTuple):
    """Clients that are asked for the same kinds of message, whose messages are added up."""

    nodes: dict[int, int]
    """Their nodes, by position in the population."""
    asked: dict[int, Asked]
    """What each of them is asked for."""
    weights: dict[int, tuple[float, float]]
    """Of each one's update and gradients, as fractions of the largest ones."""
    largest: tuple[float, float]
    """Those."""
    name: str
    """Of the exchange."""


class _Sum(NamedTuple):
    """What was revealed of a group."""

    members: list[Asked]
    """Whose messages are in the sum."""
    messages: Messages
    scalars: MaskedScalars


class _Reader:
    """Reads the replies to one stage; see `fedmime.deploy.replies.Reader`."""

    kind = Masked

    def __init__(self, exchange: Exchange) -> None:
        self._exchange, self.most = exchange, exchange.most_bytes

    def read(self, asked: Asked, reply: Masked, payload: bytes) -> bool:
        """Hand a reply to the exchange."""
        try:
            self._exchange.take(asked.member.client, payload)
        except MaskError as error:
            raise Verdict(Reason.MASKS, str(error)) from None
        return True


class SecureBackend(DeployedBackend):
    """Clients elsewhere, whose messages are masked."""

    layout = "one client after another, in masked sums"

    def ask(
        self, work: Work, points: tuple[Vector, ...] = (), message: Message | None = None, bound: Any = np.inf
    ) -> Answer:
        """See `Backend.ask`. The bound is not looked at: clients clip."""
        current = self._entered(work)
        assert self.broadcaster is not None
        offer = Offer(work, points, message, self.broadcaster)
        wanted = self._wanted(current, offer)
        self._await(offer, wanted, time.monotonic() + self._options.deadline)
        try:
            if missing := self._targets(offer, wanted).keys() - {role for each in wanted for role in each.roles}:
                raise Aborted(f"nobody is left who could send its {min(missing)}")
            sums = [self._summed(current, offer, group) for group in _by_role(wanted)]
        except Aborted as problem:
            notes.info("round %d has no sum: %s", work.round, problem)
            return Answer((), 0.0, None, 0, lambda: current.refused, strays=current.strays, cancelled=True)
        return self._answer(current, offer, sums)

    def traffic(self, cost: Cost, algorithm: Algorithm) -> Cost:
        """See `Backend.traffic`. Masked entries have other widths, and keys and shares go along."""
        expected = self._needs.expected
        if expected is None:
            return cost
        asked = over_selected(expected.cohort_size, self._options.participation.over_selection)
        return secure_cost(cost, algorithm, layout_of_messages(algorithm, self._model), self._secure, asked)

    @property
    def _secure(self) -> SecureSum:
        assert self._options.secure is not None
        return self._options.secure

    def _least(self, work: Work) -> float:
        """How many clients must report; fewer than the smallest group would wait for a sum that nobody reveals."""
        return max(super()._least(work), self._secure.minimum)

    def _summed(self, current: Round, offer: Offer, wanted: Sequence[Asked]) -> _Sum:
        """The sum over a group.

        Raises:
            Aborted: too few clients are there, or what they sent does not fit together.
        """
        work, secure = offer.work, self._secure
        greetings = self._options.roster.greetings()  # also finds out who has left
        group = self._group(current, work, wanted)
        try:
            secure.check_group(len(group.nodes))
        except ConfigError as problem:  # clients are away, or a sampler has drawn too many
            raise Aborted(str(problem)) from None
        gradients, train = wanted[0].gradients, wanted[0].train
        parts = parts_of(current.layout, work.aggregator, gradients, train, group.largest)
        layout = layout_of(parts, len(MaskedScalars._fields), len(group.nodes), secure)
        exchange = Exchange(secure, list(group.nodes), layout)
        for stage in Stage:
            inbox = self._staged(current, offer, group, exchange, greetings if stage is Stage.KEYS else {})
            if stage is Stage.INPUT:
                current.note(inbox)
                if len(inbox.received) < self._least(work):
                    raise Aborted(f"{len(inbox.received)} messages came, the run needs {self._least(work):g}")
            else:
                current.strays += inbox.strays
                if stage is not Stage.REVEAL:  # whose message is in the sum is not left out
                    current.refused |= inbox.refused
            exchange.advance()
        total = exchange.total()
        try:
            sums = sums_of_parts(total.levels, parts, len(total.clients), secure)
        except MaskError as problem:
            raise Aborted(str(problem)) from None
        members = [group.asked[client] for client in total.clients]
        return _Sum(members, messages_of(sums, current.layout, gradients), MaskedScalars(*total.scalars.tolist()))

    def _group(self, current: Round, work: Work, wanted: Sequence[Asked]) -> _Group:
        """The clients of a group that are connected, and their weights; the others are late."""
        there, absent = self._reached(wanted)
        current.refused |= {each.member.client: Reason.LATE for each in absent}
        shares = {
            each.member.client: (float(work.update_shares[each.place]), float(work.gradient_shares[each.place]))
            for each in there.values()
        }
        largest = tuple(max((share[kind] for share in shares.values()), default=0.0) or 1.0 for kind in (0, 1))
        return _Group(
            {each.member.client: node for node, each in there.items()},
            {each.member.client: each for each in there.values()},
            {client: (share[0] / largest[0], share[1] / largest[1]) for client, share in shares.items()},
            (largest[0], largest[1]),
            secrets.token_hex(16),
        )

    def _staged(
        self, current: Round, offer: Offer, group: _Group, exchange: Exchange, greetings: Mapping[int, bytes]
    ) -> Inbox:
        """Ask everybody for one stage, and take their replies; greet nodes that are new for the next exchange."""
        work, options, requests = offer.work, self._options, exchange.requests()
        asked = {group.nodes[client]: group.asked[client]._replace(nonce=secrets.token_hex(16)) for client in requests}
        roles = next(iter(asked.values())).roles
        targets = dict.fromkeys(roles, self._enough(work, exchange))
        log = functools.partial(self._log, work, asked)
        inbox = Inbox(options.run, work.round, asked, targets, _Reader(exchange), log)
        sent = {
            node: self._mask(current, offer, group, node, each, requests[each.member.client])
            for node, each in asked.items()
        }
        self._collect({**greetings, **sent}, inbox, time.monotonic() + options.deadline)
        inbox.close()
        for node, each in asked.items():
            if inbox.refused.get(each.member.client) is Reason.LATE:  # started anew, perhaps, and knows of no run
                options.roster.doubt(node)
        return inbox

    def _enough(self, work: Work, exchange: Exchange) -> int:
        """How many replies a stage waits for.

        Everybody who has sent keys and shares is in the masks, so those two stages wait for all. Messages may stay
        away, as with over-selection, and of the shares no more are needed than recover the secrets.
        """
        if exchange.stage is Stage.REVEAL:
            return exchange.needed
        if exchange.stage is Stage.INPUT and self._options.participation.over_selection != 1:
            return max(min(len(exchange.clients), planned(work)), exchange.needed)
        return len(exchange.clients)

    def _mask(self, current: Round, offer: Offer, group: _Group, node: int, asked: Asked, request: Request) -> bytes:
        """The bytes of a request."""
        ask, client = self._ask(offer.work, asked), asked.member.client
        what = ask.client, ask.gradients, ask.train, request.clients, group.weights[client]
        mask = Mask(ask.run, ask.round, ask.nonce, group.name, request.stage.value, *what)
        inner = self._request(current, offer, node, asked) if request.stage is Stage.INPUT else b""
        return packed(mask, request.payload + inner)

    def _answer(self, current: Round, offer: Offer, sums: Sequence[_Sum]) -> Answer:
        """The answer to the engine: at most one group has sent gradients, and at most one has trained."""
        work, share, unclipped = offer.work, 0.0, 0
        gradients: tuple[Vector, ...] = ()
        totals = None
        for members, messages, scalars in sums:
            if messages.gradients:
                gradients, unclipped = messages.gradients, _counted(scalars.gradients_unclipped, members)
                share = float(sum(work.gradient_shares[each.place] for each in members))
                current.probed = {each.place for each in members}
            if messages.update is not None:
                totals = _totals(work, members, messages.update, scalars)
                current.trained += [each.member.client for each in members]
        heard = len(current.heard)
        return Answer(gradients, share, totals, heard, lambda: current.refused, unclipped, current.strays)


def _totals(work: Work, members: Sequence[Asked], update: Any, scalars: MaskedScalars) -> Totals:
    """The sums over a group that has trained. Weights and steps are the server's own knowledge."""
    weights = [float(work.update_shares[each.place]) for each in members]
    steps = [each.member.steps for each in members]
    weighted = sum(w * k for w, k in zip(weights, steps, strict=True))
    unclipped = _counted(scalars.update_unclipped, members)
    own = engine.Scalars(sum(weights), scalars.loss, scalars.drift, sum(steps), weighted, len(members), unclipped)
    send, add = update
    return Totals(send, add, jnp.stack([jnp.asarray(scalar, float) for scalar in own]))


def _counted(total: float, members: Sequence[Asked]) -> int:
    """How many members a sum counts, to each of which belongs 0 or 1: what one adds beyond that is cut off.

    An adaptive clipping norm follows it, and a single client could otherwise move that norm anywhere in one round.
    """
    return min(max(round(total), 0), len(members))


def _by_role(wanted: Sequence[Asked]) -> list[list[Asked]]:
    """Clients in groups that are asked for the same: one group, or two where a cohort is split in halves."""
    groups: dict[tuple[str, ...], list[Asked]] = {}
    for each in wanted:
        groups.setdefault(each.roles, []).append(each)
    return list(groups.values())
