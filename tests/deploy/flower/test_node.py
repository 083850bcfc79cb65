"""A node in one process: it answers our messages, refuses all others, and never raises."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deploy.flower.echo import Echo
from fedmime.deploy.flower import keys, node, records
from fedmime.errors import ClusterError, ConfigError

flwr = pytest.importorskip("flwr.app")


def message(content: Any, kind: str = "query.fedmime") -> Any:
    """A message as a server makes it."""
    from flwr.supercore.task_identity import TaskIdentity

    with pytest.MonkeyPatch.context() as patch:
        for name in ("_run_id", "_node_id", "_task_id"):
            patch.setattr(TaskIdentity, name, 1)
        found = flwr.Message(content, 2, kind, ttl=60)
    found.metadata.__dict__["_message_id"] = found.object_id
    return found


def arrays(size: int = 3) -> Any:
    """Content as Flower's own strategies send it."""
    return flwr.RecordDict({"arrays": flwr.ArrayRecord([np.zeros(size)])})


class Over(Exception):
    """There are no more messages."""


class FakeClient:
    """A SuperLink with messages for a node; it keeps the replies."""

    def __init__(self, messages: list[Any], withheld: bool = False) -> None:
        self.messages, self.withheld, self.asked = messages, withheld, 0
        self.contents: dict[str, bytes] = {}
        self.confirmed: list[str] = []
        self.replies: list[Any] = []
        self.arrived: dict[str, bytes] = {}

    def PullMessages(self, request: Any) -> Any:
        from flwr.app.message import remove_content_from_message
        from flwr.common.serde import message_to_proto
        from flwr.proto.fleet_pb2 import PullMessagesResponse
        from flwr.supercore.inflatable import inflatable_object as inflatable

        if not self.messages:
            raise Over
        found = self.messages.pop(0)
        self.contents |= {name: each.deflate() for name, each in inflatable.get_all_nested_objects(found).items()}
        tree = inflatable.get_object_tree(found)
        announced = message_to_proto(remove_content_from_message(found))
        return PullMessagesResponse(messages_list=[announced], message_object_trees=[tree])

    def PullObject(self, request: Any) -> Any:
        from flwr.proto.message_pb2 import PullObjectResponse

        self.asked += 1
        content = b"" if self.withheld else self.contents[request.object_id]
        return PullObjectResponse(object_found=True, object_available=not self.withheld, object_content=content)

    def ConfirmMessageReceived(self, request: Any) -> None:
        self.confirmed.append(request.message_object_id)

    def PushMessages(self, request: Any) -> Any:
        from flwr.common.serde import message_from_proto
        from flwr.proto.fleet_pb2 import PushMessagesResponse
        from flwr.supercore.inflatable.inflatable_object import iterate_object_tree

        self.replies.append(message_from_proto(request.messages_list[0]))
        names = [tree.object_id for tree in iterate_object_tree(request.message_object_trees[0])]
        return PushMessagesResponse(objects_to_push=names, session_id="s")

    def PushObject(self, request: Any) -> Any:
        from flwr.proto.message_pb2 import PushObjectResponse

        self.arrived[request.object_id] = request.object_content
        return PushObjectResponse(stored=True)


@pytest.fixture
def fleet_node(tmp_path: Path) -> Any:
    from flwr.proto.node_pb2 import Node as Named

    keys.make_server(tmp_path / "server", ["127.0.0.1"])
    key = keys.make_node(tmp_path / "keys", "a")
    found = node.FleetNode(Echo("a"), "127.0.0.1:1", tmp_path / "server" / keys.AUTHORITY, key, 0.5)
    found._named = Named(node_id=2)
    return found


def answered(fleet_node: Any, *messages: Any) -> FakeClient:
    """What becomes of messages that a node fetches."""
    client = fleet_node._client = FakeClient([*messages])
    with pytest.raises(Over):
        fleet_node._answer_all()
    return client


def test_messages_of_ours_are_answered(fleet_node: Any) -> None:
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

    asked = message(records.wrapped(b"some bytes"))
    client = answered(fleet_node, asked)
    (reply,) = client.replies
    assert reply.metadata.reply_to_message_id == asked.object_id
    assert client.confirmed == [asked.object_id]
    found: Any = inflate_object_from_contents(reply.metadata.message_id, client.arrived)
    assert records.unwrapped(found.content, 100) == b"some bytes"


@pytest.mark.parametrize("kind", ["train", "query", "evaluate", "query.other"])
def test_other_messages_are_refused(kind: str, fleet_node: Any) -> None:
    """Flower's strategies send some of these. Nothing that they hold is fetched, and the node goes on."""
    other = message(arrays(), kind)
    client = answered(fleet_node, other, message(records.wrapped(b"exit"), kind))
    assert [reply.error.reason for reply in client.replies] == ["this node answers messages of fedmime only"] * 2
    assert client.asked == 0
    assert client.confirmed[0] == other.object_id


def test_messages_that_cannot_be_read_cost_themselves_only(fleet_node: Any) -> None:
    client = answered(fleet_node, message(arrays()), message(records.wrapped(b"sound")))
    damaged, sound = client.replies
    assert damaged.error.reason == "the message holds what no message of fedmime does"
    assert not sound.has_error()


def test_a_sender_that_died_is_not_waited_for(
    fleet_node: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It has announced a message and sent no record of it."""
    monkeypatch.setattr(node, "_STALLED", 0.2)
    fleet_node._client = FakeClient([message(records.wrapped(b"some bytes"))], withheld=True)
    begun = time.monotonic()
    with pytest.raises(Over):
        fleet_node._answer_all()
    assert time.monotonic() - begun < 10
    assert "a message is lost" in caplog.text
    assert fleet_node._client.replies == []


@pytest.mark.parametrize(
    ("status", "told"),
    [(503, "cannot answer now: busy"), (401, "does not accept this node: busy; its public key"), (403, None)],
)
def test_what_the_server_refuses_is_told_in_one_line(
    status: int, told: str | None, fleet_node: Any, caplog: pytest.LogCaptureFixture
) -> None:
    import httpx

    request = httpx.Request("POST", "https://a")

    def refuse() -> None:
        with fleet_node._told():
            raise httpx.HTTPStatusError("", request=request, response=httpx.Response(status, text="busy"))

    if told is None:
        refuse()
        assert "a message is lost: busy" in caplog.text
    else:
        with pytest.raises(ClusterError, match=told):
            refuse()


def test_errors_become_replies(fleet_node: Any) -> None:
    other = message(flwr.RecordDict({"other": flwr.ConfigRecord({"a": 1})}))
    client = answered(fleet_node, message(records.wrapped(b"raise")), other)
    raised, damaged = client.replies
    assert raised.error.reason == "ValueError"  # its words may quote data
    assert "no part of a message of fedmime" in damaged.error.reason


def test_keys_that_are_none(tmp_path: Path) -> None:
    made = keys.make_node(tmp_path, "a")
    node.FleetNode(Echo("a"), "127.0.0.1:1", made, made, 1.0)
    for path in (made.with_name("a.pub"), Path(__file__)):
        with pytest.raises(ConfigError, match="holds no private key of a node; fedmime deploy keys makes one"):
            node.FleetNode(Echo("a"), "127.0.0.1:1", made, path, 1.0)


def test_a_server_that_is_away_is_tried_for_as_long_as_patience_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "_AGAIN", 0.1)
    keys.make_server(tmp_path / "server", ["127.0.0.1"])
    key = keys.make_node(tmp_path / "keys", "a")
    found = node.FleetNode(Echo("a"), "127.0.0.1:1", tmp_path / "server" / keys.AUTHORITY, key, 0.5)
    with pytest.raises(ClusterError, match=r"127\.0\.0\.1:1 does not answer"):
        found.serve()
