"""A group of clients and their server in one process, for the tests of secure aggregation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import numpy as np

from fedmime.deploy.messages import Stage
from fedmime.deploy.secure.client import Member
from fedmime.deploy.secure.disclosures import Disclosures
from fedmime.deploy.secure.fixed_point import Layout, words_of
from fedmime.deploy.secure.options import SecureSum
from fedmime.deploy.secure.server import Exchange, Request, Total

DEFAULT = SecureSum()
Silent = Collection[tuple[Stage, int]]


class Group:
    """Clients with integers as messages; each has one scalar, its position."""

    def __init__(self, levels: Mapping[int, np.ndarray], options: SecureSum = DEFAULT, name: str = "one") -> None:
        self.levels, self.options = levels, options
        self.layout = Layout(len(next(iter(levels.values()))), 1, options.width(len(levels)))
        self.members: dict[int, Member] = {}
        self.disclosures = {client: Disclosures() for client in levels}
        self.name = name
        self.sent: dict[tuple[Stage, int], bytes] = {}

    def answer(self, client: int, request: Request) -> bytes:
        """A client's reply to a request, as it is sent."""
        clients = list(request.clients)
        if request.stage is Stage.KEYS:
            self.members[client] = Member(self.options, client, self.name, self.disclosures[client])
            return self.members[client].keys(clients)
        member = self.members[client]
        if request.stage is Stage.SHARES:
            return member.shares(clients, request.payload)
        if request.stage is Stage.INPUT:
            member.receive(clients, request.payload)
            return member.masked(words_of(self.levels[client], [client]))
        return member.reveal(clients)

    def exchange(self) -> Exchange:
        """The server's side."""
        return Exchange(self.options, list(self.levels), self.layout)

    def play(
        self,
        silent: Silent = (),
        until: Stage = Stage.REVEAL,
        change: Callable[[Stage, int, bytes], bytes] = lambda stage, client, reply: reply,
    ) -> Exchange:
        """Go through all stages up to one; `silent` clients do not answer from that stage on."""
        exchange = self.exchange()
        for stage in _through(until):
            for client, request in exchange.requests().items():
                if (stage, client) not in silent:
                    reply = change(stage, client, self.answer(client, request))
                    self.sent[stage, client] = reply
                    exchange.take(client, reply)
            exchange.advance()
        return exchange

    def total(self, silent: Silent = ()) -> Total:
        """The sum that the server learns."""
        return self.play(silent).total()


def _through(until: Stage) -> Iterable[Stage]:
    stages = list(Stage)
    return stages[: stages.index(until) + 1]


def random_levels(clients: Iterable[int], entries: int = 40, seed: int = 0, bits: int = 20) -> dict[int, np.ndarray]:
    """Integers of all clients, as wide as they may be."""
    random, most = np.random.default_rng(seed), (1 << (bits - 1)) - 1
    return {client: random.integers(-most, most, entries, endpoint=True) for client in clients}
