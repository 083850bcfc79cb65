"""What nodes may deliver to a SuperLink: replies to what they were asked, from themselves, and of bounded size.

Flower takes whatever a registered node calls a message: instructions to other nodes as if they came from the server,
and for one reply any number of announcements, whose records it keeps until the run ends. Here a node may announce one
reply to each request, and the records of a reply together hold no more than the largest message.
"""

from __future__ import annotations

import collections
import hashlib
from typing import Any, TypeVar

_SERVER = 1  # the number by which Flower knows the SuperLink
_REMEMBERED = 1 << 14  # replies; what is forgotten can no longer be delivered
_BESIDE = 1 << 14  # bytes that a reply has beside its message: heads of its records, and the list of them

T = TypeVar("T")


class NotAllowed(Exception):
    """A node may not deliver this; the words say why."""


class Deliveries:
    """The replies that nodes are delivering.

    Args:
        most: bytes of the largest message.
    """

    def __init__(self, most: int) -> None:
        self._most = most + _BESIDE
        self._pending: dict[str, bytes] = {}  # by the request: the digest of the announced records, until it is stored
        self._stored: collections.OrderedDict[str, bytes] = collections.OrderedDict()
        self._sizes: collections.OrderedDict[str, dict[str, int]] = collections.OrderedDict()  # by session and record

    def announce(self, body: bytes) -> str:
        """Check the announcement of a reply.

        Returns:
            The request that it answers, for `announced` and `forget`.

        Raises:
            NotAllowed: nodes may not send this.
        """
        from flwr.proto.fleet_pb2 import PushMessagesRequest

        request = _parsed(PushMessagesRequest, body)
        if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
            raise NotAllowed("a node announces one reply at a time")
        told, tree = request.messages_list[0].metadata, request.message_object_trees[0]
        if not told.reply_to_message_id or told.dst_node_id != _SERVER:
            raise NotAllowed("a node sends replies to the server, and nothing else")
        if told.src_node_id != request.node.node_id:
            raise NotAllowed("a node replies for itself only")
        if told.message_id != tree.object_id:
            raise NotAllowed("a reply is named by its digest")
        asked, digest = told.reply_to_message_id, hashlib.sha256(tree.SerializeToString(deterministic=True)).digest()
        if self._pending.get(asked, digest) != digest or self._stored.get(asked, digest) != digest:
            raise NotAllowed("another reply to this request was announced before")
        self._pending[asked] = digest
        return asked

    def announced(self, asked: str, response: bytes) -> None:
        """Remember what Flower says to an announcement, before its sender can act on it."""
        from flwr.proto.fleet_pb2 import PushMessagesResponse

        digest = self._pending.get(asked)
        found = _parsed(PushMessagesResponse, response)
        if digest is not None and found.objects_to_push:
            _remember(self._stored, asked, digest)
            _remember(self._sizes, found.session_id, dict.fromkeys(found.objects_to_push, 0))

    def forget(self, asked: str) -> None:
        """The announcement was taken or not."""
        self._pending.pop(asked, None)

    def deliver(self, body: bytes) -> None:
        """Check a record of a reply.

        Raises:
            NotAllowed: it belongs to no reply, or there is too much of it.
        """
        from flwr.proto.message_pb2 import PushObjectRequest

        request = _parsed(PushObjectRequest, body)
        sizes = self._sizes.get(request.session_id)
        if sizes is None:
            raise NotAllowed("a record belongs to a reply that was announced")
        if request.object_id not in sizes:
            raise NotAllowed("a record is one that was asked for after its reply was announced")
        size = len(request.object_content)
        if (total := sum(sizes.values()) - sizes[request.object_id] + size) > self._most:
            raise NotAllowed(f"a reply of {total} bytes is too large, accepted are at most {self._most}")
        sizes[request.object_id] = size


def _parsed(kind: type[Any], body: bytes) -> Any:
    from google.protobuf.message import DecodeError

    try:
        return kind.FromString(body)
    except DecodeError:
        raise NotAllowed(f"it is no {kind.__name__}") from None


def _remember(known: collections.OrderedDict[str, T], name: str, value: T) -> None:
    known[name] = value
    if len(known) > _REMEMBERED:
        known.popitem(last=False)
