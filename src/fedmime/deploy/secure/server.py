"""The server's side of one exchange: it passes on what clients have for one another, and unmasks their sum.

The server moves from stage to stage with whoever has answered, as long as they are enough. A reply that is not sound
counts as none.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedmime.deploy.messages import Stage
from fedmime.deploy.secure import primitives
from fedmime.deploy.secure.client import with_pairs
from fedmime.deploy.secure.fixed_point import Layout, Words, total_of
from fedmime.deploy.secure.options import MaskError, SecureSum
from fedmime.deploy.secure.primitives import (
    PUBLIC_BYTES,
    SEALED_BYTES,
    SECRET_BYTES,
    SECRET_SHARE_BYTES,
    SEED_BYTES,
    SEED_SHARE_BYTES,
)


class Aborted(Exception):
    """Too few clients are left: nothing can be revealed, and the round has no result."""


class Request(NamedTuple):
    """What is sent to one client."""

    stage: Stage
    clients: tuple[int, ...]
    """Who has answered the stage before, or in the first one who is asked."""
    payload: bytes = b""


class Total(NamedTuple):
    """All that the server learns of the clients' messages."""

    clients: tuple[int, ...]
    """Whose messages are in the sum."""
    levels: np.ndarray
    """[entries] the sums of the integers, int64."""
    scalars: np.ndarray
    """[scalars] the sums of the scalars."""


class Exchange:
    """One exchange with a group: `requests`, `take` for every reply, `advance`, four times; then `total`.

    Args:
        options: those of the clients.
        clients: positions in the population of those who are asked.
        layout: of a message.
    """

    def __init__(self, options: SecureSum, clients: Sequence[int], layout: Layout) -> None:
        options.check_group(len(clients))
        self._options, self._layout = options, layout
        self.stage = Stage.KEYS
        self._asked = tuple(sorted(clients))
        self.clients = self._asked
        """Who takes part in the current stage."""
        self._group: tuple[int, ...] = ()  # who has sent keys
        self._present: tuple[int, ...] = ()  # who has sent shares, too
        self._replies: dict[int, bytes] = {}  # to the current stage
        self._keys: dict[int, bytes] = {}
        self._sealed: dict[int, bytes] = {}
        self._sum = Words.zeros(layout)
        self._revealed: Mapping[int, bytes] = {}

    @property
    def needed(self) -> int:
        """How many clients must answer the current stage: a fraction of those who have sent keys."""
        return self._options.needed(len(self._group) or len(self._replies))

    @property
    def most_bytes(self) -> int:
        """The most bytes that a sound reply to any stage has."""
        clients = len(self._asked)
        return max(2 * PUBLIC_BYTES, clients * SEALED_BYTES, clients * SECRET_SHARE_BYTES, self._layout.nbytes)

    @property
    def reply_bytes(self) -> int:
        """Bytes of a sound reply to the current stage."""
        if self.stage is Stage.KEYS:
            return 2 * PUBLIC_BYTES
        if self.stage is Stage.SHARES:
            return (len(self._group) - 1) * SEALED_BYTES
        if self.stage is Stage.INPUT:
            return self._layout.nbytes
        return self._slices()[-1].stop

    def requests(self) -> dict[int, Request]:
        """What every client is to be sent in the current stage."""
        if self.stage is Stage.SHARES:
            keys = b"".join(self._keys[client] for client in self.clients)
            return {client: Request(self.stage, self.clients, keys) for client in self.clients}
        if self.stage is Stage.INPUT:
            return {client: Request(self.stage, self.clients, self._letters_to(client)) for client in self.clients}
        return {client: Request(self.stage, self.clients) for client in self.clients}

    def take(self, client: int, payload: bytes) -> None:
        """Take a client's reply to the current stage.

        Raises:
            MaskError: it is not sound, or not asked for; the client counts as one that did not answer.
        """
        if client not in self.clients or client in self._replies:
            raise MaskError(f"client {client} was not asked, or has answered before")
        if len(payload) != self.reply_bytes:
            raise MaskError(f"a reply to {self.stage.value!r} has {self.reply_bytes} bytes, got {len(payload)}")
        if self.stage is Stage.KEYS:
            self._check_keys(payload)
        elif self.stage is Stage.INPUT:
            self._sum = self._sum.plus(Words.unpack(payload, self._layout))
            payload = b""
        elif self.stage is Stage.REVEAL:
            self._check_shares(client, payload)
        self._replies[client] = payload

    def advance(self) -> None:
        """End the current stage with those who have answered.

        Raises:
            Aborted: they are too few.
        """
        left = tuple(sorted(self._replies))
        if len(left) < self.needed:
            words = f"{len(left)} of {len(self.clients)} clients answered {self.stage.value!r}"
            raise Aborted(f"{words}; at least {self.needed} are needed")
        if self.stage is Stage.KEYS:
            self._group, self._keys = left, self._replies
        elif self.stage is Stage.SHARES:
            self._present, self._sealed = left, self._replies
        elif self.stage is Stage.REVEAL:
            self._revealed = self._replies
            return
        stages = list(Stage)
        self.stage, self.clients, self._replies = stages[stages.index(self.stage) + 1], left, {}

    def total(self) -> Total:
        """The sum over all clients whose message has arrived, after the last stage.

        Raises:
            Aborted: the shares that clients have revealed do not belong together.
        """
        words = self._sum
        try:
            for owner, where in zip(self._present, self._slices(), strict=True):
                words = self._unmasked(words, owner, where)
            return Total(self.clients, *total_of(words, self._layout, len(self.clients)))
        except MaskError as problem:
            raise Aborted(str(problem)) from None

    def _unmasked(self, words: Words, owner: int, where: slice) -> Words:
        """Words without the masks of one client: its own if its message is in the sum, else those it shares.

        Args:
            where: where the shares of its secret are in what every client has revealed.
        """
        sent = owner in self.clients
        shares = [self._revealed[client][where] for client in sorted(self._revealed)[: self.needed]]
        secret = primitives.joined(shares, SEED_BYTES if sent else SECRET_BYTES)
        if sent:
            return words.minus(Words.mask(secret, self._layout))
        keys = primitives.restored_keys(secret)
        if keys.public != self._keys[owner][:PUBLIC_BYTES]:
            raise MaskError(f"the shares of client {owner}'s private key give another key")
        others = {client: self._keys[client][:PUBLIC_BYTES] for client in self.clients}
        return with_pairs(words, owner, keys, others, self._layout)

    def _letters_to(self, client: int) -> bytes:
        """What the others of the current stage have sealed for a client, in their order."""
        found = []
        for sender in self.clients:
            if sender != client:
                receivers = [other for other in self._group if other != sender]
                start = receivers.index(client) * SEALED_BYTES
                found.append(self._sealed[sender][start : start + SEALED_BYTES])
        return b"".join(found)

    def _slices(self) -> list[slice]:
        """Where the share of each client that is present stands in what one client reveals."""
        sizes = [SEED_SHARE_BYTES if owner in self.clients else SECRET_SHARE_BYTES for owner in self._present]
        return [slice(end - size, end) for size, end in zip(sizes, itertools.accumulate(sizes), strict=True)]

    def _check_keys(self, payload: bytes) -> None:
        """Refuse keys that would make the others refuse the whole group."""
        keys = {payload[:PUBLIC_BYTES], payload[PUBLIC_BYTES:]}
        for key in keys:
            primitives.point(key)
        taken = {part for reply in self._replies.values() for part in (reply[:PUBLIC_BYTES], reply[PUBLIC_BYTES:])}
        if len(keys) < 2 or keys & taken:
            raise MaskError("two public keys are the same")

    def _check_shares(self, client: int, payload: bytes) -> None:
        """Refuse shares that are not those that the client was given."""
        place = self._group.index(client)
        if not all(primitives.numbered(payload[where], place) for where in self._slices()):
            raise MaskError(f"client {client} has revealed shares that are not its own")
