"""Transports: how requests reach nodes and replies come back, without knowing what either says.

A transport authenticates nodes and moves byte strings. Who is in a cohort, which reply counts and what it may hold is
decided behind it, in `backend.py`, by the node ids that the transport vouches for.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from fedmime.deploy.protocol import Node


class Failure(NamedTuple):
    """A node that was asked and gave no reply: it crashed, left, or could not be reached."""

    reason: str
    """Why, in one line."""


class Transport(Protocol):
    """Moves byte strings to authenticated nodes and back.

    A node's id is a number that the transport has authenticated, for example by the node's key. A key has one id,
    whatever its owner claims in messages.
    """

    def nodes(self) -> Sequence[int]:
        """The ids of the nodes that are connected now."""
        ...

    def exchange(self, requests: Mapping[int, bytes], deadline: float) -> Iterator[tuple[int, bytes | Failure]]:
        """Send each node its request, and yield replies in the order in which they arrive.

        The iterator ends when every node has replied or failed, or when the deadline has passed; a node that has done
        neither by then is simply missing. The caller may stop early. What arrives afterwards is discarded, or comes
        out of a later exchange, where the receiver recognises it as late by the round and nonce that it carries.

        Args:
            requests: what to send, by node id.
            deadline: seconds from now until the iterator ends at the latest.

        Yields:
            A node's id with its reply as it arrived, unchecked, or with the `Failure` to get one.
        """
        ...


class LoopTransport:
    """Nodes in this process, asked one after another: for tests, and to debug a deployment without a network.

    Args:
        nodes: the nodes by id.
    """

    def __init__(self, nodes: Mapping[int, Node]) -> None:
        self._nodes = dict(nodes)

    def nodes(self) -> Sequence[int]:
        """See `Transport.nodes`."""
        return list(self._nodes)

    def exchange(self, requests: Mapping[int, bytes], deadline: float) -> Iterator[tuple[int, bytes | Failure]]:
        """See `Transport.exchange`. The deadline is looked at between nodes; a node that is computing is waited for."""
        end = time.monotonic() + deadline
        for node, request in requests.items():
            if time.monotonic() > end:
                return
            yield node, self._ask(node, request)

    def _ask(self, node: int, request: bytes) -> bytes | Failure:
        if node not in self._nodes:
            return Failure(f"node {node} is not connected")
        try:
            return self._nodes[node].answer(request)
        except Exception as error:  # as a crash of a node elsewhere would, it costs the reply and not the round
            return Failure(f"{type(error).__name__}: {error}")
