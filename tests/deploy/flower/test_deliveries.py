"""What nodes may deliver: one reply to each request, from themselves, with records that are bounded together."""

from typing import Any

import pytest

from fedmime.deploy.flower.deliveries import Deliveries, NotAllowed

pytest.importorskip("flwr")

NODE, OTHER, SERVER = 7, 8, 1
MOST = 100_000


def digest(k: int) -> str:
    return f"{k:064x}"


def announcement(node: int = NODE, records: int = 1, **metadata: Any) -> bytes:
    from flwr.proto.fleet_pb2 import PushMessagesRequest
    from flwr.proto.message_pb2 import Message, Metadata, ObjectTree
    from flwr.proto.node_pb2 import Node

    told = {"message_id": digest(0), "src_node_id": NODE, "dst_node_id": SERVER, "reply_to_message_id": "asked"}
    tree = ObjectTree(object_id=digest(0), children=[ObjectTree(object_id=digest(1 + k)) for k in range(records)])
    message = Message(metadata=Metadata(**(told | metadata)))
    request = PushMessagesRequest(node=Node(node_id=node), messages_list=[message], message_object_trees=[tree])
    return request.SerializeToString()


def take(found: Deliveries, body: bytes, response: bytes) -> None:
    """An announcement, and what Flower says to it."""
    asked = found.announce(body)
    found.announced(asked, response)
    found.forget(asked)


def taken(session: str = "s", records: int = 2) -> bytes:
    """What Flower says to an announcement that it takes."""
    from flwr.proto.fleet_pb2 import PushMessagesResponse

    return PushMessagesResponse(session_id=session, objects_to_push=map(digest, range(records))).SerializeToString()


def record(session: str, k: int, size: int) -> bytes:
    from flwr.proto.message_pb2 import PushObjectRequest

    return PushObjectRequest(session_id=session, object_id=digest(k), object_content=b"x" * size).SerializeToString()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (
            {"reply_to_message_id": "", "src_node_id": SERVER, "dst_node_id": OTHER},
            "replies to the server, and nothing",
        ),
        ({"dst_node_id": OTHER}, "replies to the server, and nothing else"),
        ({"src_node_id": OTHER}, "replies for itself only"),
        ({"node": OTHER}, "replies for itself only"),
        ({"message_id": digest(9)}, "named by its digest"),
    ],
)
def test_nodes_send_nothing_but_their_own_replies(given: dict[str, Any], why: str) -> None:
    with pytest.raises(NotAllowed, match=why):
        Deliveries(MOST).announce(announcement(**given))


@pytest.mark.parametrize("body", [b"", b"\xff\xff", announcement() + announcement()])
def test_other_announcements_are_refused(body: bytes) -> None:
    with pytest.raises(NotAllowed, match=r"one reply at a time|it is no PushMessagesRequest"):
        Deliveries(MOST).announce(body)


def test_a_request_has_one_reply() -> None:
    """Flower keeps the records of every announcement until the run ends, also if it knows the reply already."""
    found = Deliveries(MOST)
    assert found.announce(announcement()) == "asked"
    with pytest.raises(NotAllowed, match="another reply to this request"):
        found.announce(announcement(records=2))  # while the first one is on its way
    found.announced("asked", taken())
    found.forget("asked")
    take(found, announcement(), taken("again"))  # its sender has not heard that it was taken
    with pytest.raises(NotAllowed, match="another reply to this request"):
        found.announce(announcement(records=2))
    found.announce(announcement(reply_to_message_id="other", records=2))


def test_a_reply_that_flower_refuses_blocks_no_other() -> None:
    found = Deliveries(MOST)
    take(found, announcement(records=2), b"")
    found.announce(announcement(records=3))
    with pytest.raises(NotAllowed, match="belongs to a reply"):
        found.deliver(record("s", 0, 1))


def test_the_records_of_a_reply_are_bounded_together() -> None:
    found = Deliveries(MOST)
    take(found, announcement(records=3), taken(records=4))
    found.deliver(record("s", 1, 50_000))
    found.deliver(record("s", 2, 50_000))
    found.deliver(record("s", 2, 50_000))  # once more, because its sender has not heard of it
    with pytest.raises(NotAllowed, match="a reply of 150000 bytes is too large"):
        found.deliver(record("s", 3, 50_000))
    for session in ("", "unknown"):
        with pytest.raises(NotAllowed, match="belongs to a reply that was announced"):
            found.deliver(record(session, 1, 1))
    with pytest.raises(NotAllowed, match="it is no PushObjectRequest"):
        found.deliver(b"\xff\xff")


def test_a_record_that_was_not_asked_for_is_refused() -> None:
    """A node could otherwise have any number of them counted, each of which is remembered."""
    found = Deliveries(MOST)
    take(found, announcement(records=3), taken(records=2))
    for k in (2, 3, 1000):
        with pytest.raises(NotAllowed, match="is one that was asked for"):
            found.deliver(record("s", k, 0))
    found.deliver(record("s", 1, 10))
    assert [len(sizes) for sizes in found._sizes.values()] == [2]


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedmime.deploy.flower import deliveries

    monkeypatch.setattr(deliveries, "_REMEMBERED", 3)
    found = Deliveries(MOST)
    for k in range(10):
        take(found, announcement(reply_to_message_id=f"{k}"), taken(f"s{k}"))
    assert len(found._stored) == len(found._sizes) == 3
    assert not found._pending
