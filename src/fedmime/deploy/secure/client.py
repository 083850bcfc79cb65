"""The client's side of one exchange: four requests, each of which may be answered once.

A client trusts the server to pass on public keys, and nothing else. It computes the threshold itself, and refuses a
group that is too small and any request that would let two different sums be told apart by its own message.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from fedmime.deploy.messages import MOST_CLIENTS, Stage
from fedmime.deploy.secure import primitives
from fedmime.deploy.secure.disclosures import Disclosures
from fedmime.deploy.secure.fixed_point import Layout, Words
from fedmime.deploy.secure.options import MaskError, SecureSum
from fedmime.deploy.secure.primitives import PUBLIC_BYTES, SEALED_BYTES, KeyPair, Letter
from fedmime.errors import ConfigError
from fedmime.validation import LARGEST_COUNT


def clients_of(value: Any) -> tuple[int, ...]:
    """A list of clients as it stands in a request: positions in the population, in increasing order.

    Raises:
        MaskError: it is anything else.
    """
    sound = isinstance(value, list | tuple) and 0 < len(value) <= MOST_CLIENTS
    sound = sound and all(type(one) is int and 0 <= one <= LARGEST_COUNT for one in value)
    if not sound or any(a >= b for a, b in itertools.pairwise(value)):
        raise MaskError(f"clients must be 1 to {MOST_CLIENTS} different positions in increasing order")
    return tuple(value)


class Member:
    """One client in one exchange. All its secrets are new and are forgotten with it.

    Args:
        options: the client's own.
        client: its position in the population.
        exchange: what the exchange is called among the disclosures; the same messages must have the same name.
        disclosures: what was revealed in this run so far.
    """

    def __init__(self, options: SecureSum, client: int, exchange: str, disclosures: Disclosures) -> None:
        self._options, self._client = options, client
        self._exchange, self._disclosures = exchange, disclosures
        self._mask_keys, self._letter_keys = primitives.new_keys(), primitives.new_keys()
        self._asked: tuple[int, ...] = ()  # who was asked for keys
        self._group: tuple[int, ...] = ()  # who has sent them
        self._present: tuple[int, ...] = ()  # who has sent shares, too
        self._public: dict[int, bytes] = {}  # the others' keys from which pairwise masks follow
        self._letter_key: dict[int, bytes] = {}
        self._seed = b""
        self._held: dict[int, Letter] = {}  # shares of the group's secrets, by their owner
        self._stage = Stage.KEYS

    def keys(self, clients: Any) -> bytes:
        """The two public keys of this client.

        Args:
            clients: everybody who is asked for keys.

        Raises:
            MaskError: they are too few to hide this client, or too many for their sum to be exact.
        """
        self._enter(Stage.KEYS)
        asked = clients_of(clients)
        self._check_size(asked, asked)
        try:
            self._options.check_group(len(asked))
        except ConfigError as problem:
            raise MaskError(str(problem)) from None
        self._asked = asked
        return self._mask_keys.public + self._letter_keys.public

    def shares(self, clients: Any, keys: bytes) -> bytes:
        """Shares of this client's two secrets, sealed for every other client of the group, in its order.

        Args:
            clients: the group: everybody who has sent keys.
            keys: theirs, in the same order.

        Raises:
            MaskError: the group is too small, or the keys are not sound.
        """
        self._enter(Stage.SHARES)
        group = clients_of(clients)
        self._check_size(group, self._asked)
        publics = _publics(group, keys)
        if publics[self._client] != (self._mask_keys.public, self._letter_keys.public):
            raise MaskError("the group has other keys for this client than it sent")
        self._group = group
        self._public = {client: public for client, (public, _) in publics.items() if client != self._client}
        self._letter_key = {
            client: primitives.agreed_key(self._letter_keys, publics[client][1]) for client in self._public
        }
        self._seed = primitives.new_seed()
        needed = self._options.needed(len(group))
        seeds = primitives.split(self._seed, needed, len(group))
        secrets = primitives.split(primitives.secret_of(self._mask_keys), needed, len(group))
        letters = [
            Letter(self._client, client, seed, secret)
            for client, seed, secret in zip(group, seeds, secrets, strict=True)
        ]
        self._held = {self._client: letters[group.index(self._client)]}
        sealed = [
            primitives.seal(self._letter_key[one.receiver], one) for one in letters if one.receiver in self._public
        ]
        return b"".join(sealed)

    def receive(self, clients: Any, sealed: bytes) -> None:
        """Take the shares that the others have sent, before this client computes its message.

        Args:
            clients: everybody who has sent shares.
            sealed: what the others of them have sealed for this client, in the same order.

        Raises:
            MaskError: too few are left, or the shares are not sound.
        """
        self._enter(Stage.INPUT)
        present = clients_of(clients)
        self._check_size(present, self._group)
        others = [client for client in present if client != self._client]
        if len(sealed) != len(others) * SEALED_BYTES:
            raise MaskError(f"{len(others)} sealed shares have {len(others) * SEALED_BYTES} bytes, got {len(sealed)}")
        place = self._group.index(self._client)
        for number, client in enumerate(others):
            start = number * SEALED_BYTES
            letter = primitives.opened(self._letter_key[client], sealed[start : start + SEALED_BYTES])
            right = (letter.sender, letter.receiver) == (client, self._client)
            if not right or not all(primitives.numbered(share, place) for share in (letter.seed, letter.secret)):
                raise MaskError(f"client {client} has sealed shares that are not this client's")
            self._held[client] = letter
        self._present = present

    def masked(self, words: Words) -> bytes:
        """The message of this client under its masks, after it has received the others' shares."""
        if not self._present or not self._seed:
            raise MaskError("a message is masked once, after the shares of the others have come")
        layout = Layout(len(words.entries), len(words.scalars) - 1, self._options.width(len(self._asked)))
        masked = words.plus(Words.mask(self._seed, layout))
        self._seed = b""
        others = {client: public for client, public in self._public.items() if client in self._present}
        return with_pairs(masked, self._client, self._mask_keys, others, layout).pack(layout)

    def reveal(self, clients: Any) -> bytes:
        """What this client holds of the others' secrets, so that the sum over the given clients can be unmasked.

        Of every client either a share of its own mask's seed or one of its private key is given, never both. Asked
        again with the same clients, it answers the same; with others, it refuses.

        Args:
            clients: everybody whose masked message has arrived.

        Raises:
            MaskError: too few are left, this client is not among them, or other clients were revealed before.
        """
        if self._stage is not Stage.REVEAL or self._seed:
            raise MaskError(f"{Stage.REVEAL.value!r} comes after a masked message was sent")
        survivors = clients_of(clients)
        self._check_size(survivors, self._present)
        if not self._disclosures.admit(self._exchange, survivors):
            raise MaskError("the sum over other clients was revealed before, and two sums would tell them apart")
        letters = [self._held[client] for client in self._present]
        return b"".join(letter.seed if letter.sender in survivors else letter.secret for letter in letters)

    def _enter(self, stage: Stage) -> None:
        """Begin a stage, once; the next one is then the only one that can follow."""
        if self._stage is not stage:
            raise MaskError(f"{stage.value!r} cannot come now: this exchange is at {self._stage.value!r}")
        stages = list(Stage)
        self._stage = stages[stages.index(stage) + 1]

    def _check_size(self, clients: tuple[int, ...], among: tuple[int, ...]) -> None:
        """Refuse a set of clients that this client is not in, that is no part of an earlier one, or that is small."""
        if self._client not in clients:
            raise MaskError("this client is not among the clients of the request")
        if not set(clients) <= set(among):
            raise MaskError("the request has clients that took no part in the stage before")
        group = len(self._group) or len(clients)
        if len(clients) < (needed := self._options.needed(group)):
            raise MaskError(f"too few clients to hide this one: at least {needed} are needed, got {len(clients)}")


def with_pairs(words: Words, client: int, keys: KeyPair, others: Mapping[int, bytes], layout: Layout) -> Words:
    """Words with the masks that a client shares with others: the lower one of each pair adds, the other subtracts.

    Args:
        client: whose masks.
        keys: its key pair for masks.
        others: their public keys for masks.
    """
    for other, public in others.items():
        mask = Words.mask(primitives.pair_seed(keys, public), layout)
        words = words.plus(mask) if client < other else words.minus(mask)
    return words


def _publics(group: Sequence[int], keys: bytes) -> dict[int, tuple[bytes, bytes]]:
    """The two public keys of every client of a group."""
    each = 2 * PUBLIC_BYTES
    if len(keys) != len(group) * each:
        raise MaskError(f"the keys of {len(group)} clients have {len(group) * each} bytes, got {len(keys)}")
    parts = [keys[start : start + PUBLIC_BYTES] for start in range(0, len(keys), PUBLIC_BYTES)]
    if len(set(parts)) < len(parts):
        raise MaskError("two public keys are the same")
    return {client: (parts[2 * place], parts[2 * place + 1]) for place, client in enumerate(group)}
