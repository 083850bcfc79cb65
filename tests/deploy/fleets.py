"""Small fleets in this process, and a transport that meddles with what passes through it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

import fedmime as fm
from engine.setting import PROBLEM, a, o, population
from fedmime.deploy import server
from fedmime.deploy.messages import Answer, Ask, Hello, is_a, opened, packed
from fedmime.deploy.node import JaxNode
from fedmime.deploy.protocol import Frame, Node, unpack
from fedmime.deploy.transport import Failure, LoopTransport, Transport

CLIENTS = population((4, 3, 2, 1, 3))
FEDAVG, MIME = a.fedavg(0.1), a.mime(o.momentum(0.6), 0.1)
FIRST = 100  # the id of the first client's node

Reply = tuple[int, bytes | Failure]
Meddle = Callable[[int, bytes, bytes | Failure], Sequence[Reply]]


def nodes(algorithm: Any, aggregation: Any = None, clients: Any = CLIENTS, **others: Any) -> dict[int, Node]:
    """A node for each client of a population, by id."""
    problem, given = others.pop("problem", PROBLEM), {"backend": "reference", **others}
    return {
        FIRST + i: JaxNode(problem, clients.client_at(i), name, algorithm=algorithm, aggregation=aggregation, **given)
        for i, name in enumerate(clients.ids)
    }


SETTINGS = {"cohort_size": 4, "batch_size": 3, "seed": 1, "evaluate_every": 100}


def deploy(
    algorithm: Any, aggregation: Any = None, transport: Transport | None = None, rounds: int = 3, **others: Any
) -> fm.Run:
    """Run an algorithm with the nodes of `CLIENTS`, or through a given transport."""
    given = {**SETTINGS, "waiting": server.Waiting(5, 5.0, 30.0), "test": CLIENTS.test, **others}
    problem = given.pop("problem", PROBLEM)
    transport = transport or LoopTransport(nodes(algorithm, aggregation, problem=problem))
    return server.run(transport, algorithm, problem, rounds, aggregation=aggregation, **given)


def simulate(
    algorithm: Any, aggregation: Any = None, rounds: int = 3, backend: Any = "reference", **others: Any
) -> fm.Run:
    """The same with simulated clients."""
    given = {**SETTINGS, **others}
    problem = given.pop("problem", PROBLEM)
    return fm.simulate(algorithm, problem, CLIENTS, rounds, aggregation=aggregation, backend=backend, **given)


class Meddling:
    """Nodes in this process, and somebody who changes, drops, repeats or delays what they reply.

    Args:
        inner: the nodes.
        meddle: is given a node, its request and its reply, and returns what arrives instead.
        last: replies of nodes that arrive after those of all others, as if they were slow.
    """

    def __init__(self, inner: Mapping[int, Node], meddle: Meddle | None = None, last: Sequence[int] = ()) -> None:
        self._inner, self._meddle, self.last = LoopTransport(inner), meddle, list(last)
        self.requests: list[tuple[int, bytes]] = []
        self.replies: list[Reply] = []

    def nodes(self) -> Sequence[int]:
        return self._inner.nodes()

    def exchange(self, requests: Mapping[int, bytes], deadline: float) -> Iterator[Reply]:
        order = sorted(requests, key=lambda node: (node in self.last, node))
        for node, reply in self._inner.exchange({node: requests[node] for node in order}, deadline):
            self.requests.append((node, requests[node]))
            arrived = [(node, reply)] if self._meddle is None else self._meddle(node, requests[node], reply)
            self.replies += arrived
            yield from arrived


def frame(data: bytes) -> Frame:
    """The frame of a message of any length."""
    return unpack(data, 1 << 30)


def asked(request: bytes) -> Ask | None:
    """The `Ask` in a request, if it is one."""
    return None if is_a(frame(request), Hello) else opened(frame(request), Ask)


def answered(reply: bytes | Failure) -> Answer | None:
    """The `Answer` in a reply, if it is one."""
    if isinstance(reply, Failure) or not is_a(frame(reply), Answer):
        return None
    return opened(frame(reply), Answer)


def rewritten(reply: bytes, payload: bytes | None = None, **changes: Any) -> bytes:
    """An answer with other fields or another payload, checked or not."""
    found = frame(reply)
    return packed(opened(found, Answer)._replace(**changes), found.payload if payload is None else payload)


def only_in(round_number: int, node: int, change: Callable[[bytes], Sequence[Reply]]) -> Meddle:
    """Meddle with the replies of one node in one round."""

    def meddle(sender: int, request: bytes, reply: bytes | Failure) -> Sequence[Reply]:
        ask = asked(request)
        if sender != node or ask is None or ask.round != round_number or isinstance(reply, Failure):
            return [(sender, reply)]
        return change(reply)

    return meddle


def leaves(run: fm.Run) -> list[np.ndarray]:
    """The arrays of the server and of the aggregator at the end of a run."""
    assert run.state is not None
    return [np.asarray(leaf) for leaf in jax.tree.leaves((run.state.server, run.state.aggregation))]


def apart(one: fm.Run, other: fm.Run) -> float:
    """The largest difference between two runs' final states."""
    pairs = zip(leaves(one), leaves(other), strict=True)
    return max(float(np.abs(p.astype(float) - q.astype(float)).max(initial=0)) for p, q in pairs)
