"""A node in one process: it answers our messages, refuses all others, and never raises."""

from pathlib import Path
from typing import Any

import pytest

from deploy.flower.echo import Echo
from fedmime.deploy.flower import keys, node, records
from fedmime.errors import ConfigError

flwr = pytest.importorskip("flwr.app")


def message(content: Any, kind: str = "query.fedmime") -> Any:
    """A message as it arrives at a node."""
    from flwr.supercore.task_identity import TaskIdentity

    with pytest.MonkeyPatch.context() as patch:
        for name in ("_run_id", "_node_id", "_task_id"):
            patch.setattr(TaskIdentity, name, 1)
        found = flwr.Message(content, 2, kind, ttl=60)
    found.metadata.__dict__["_message_id"] = "m"
    return found


def test_messages_of_ours_are_answered() -> None:
    reply = node._reply(Echo("a"), message(records.wrapped(b"some bytes")))
    assert records.unwrapped(reply.content, 100) == b"some bytes"
    assert reply.metadata.reply_to_message_id == "m"


@pytest.mark.parametrize("kind", ["train", "query", "evaluate", "query.other"])
def test_other_messages_are_refused(kind: str) -> None:
    """Flower's strategies send some of these. Nothing that they hold is looked at."""
    reply = node._reply(Echo("a"), message(records.wrapped(b"exit"), kind))
    assert reply.error.reason == "this node answers messages of fedmime only"


def test_errors_become_replies() -> None:
    assert node._reply(Echo("a"), message(records.wrapped(b"raise"))).error.reason == "ValueError: asked for"
    damaged = message(flwr.RecordDict({"other": flwr.ConfigRecord({"a": 1})}))
    assert "no part of a message of fedmime" in node._reply(Echo("a"), damaged).error.reason


def test_keys_that_are_none(tmp_path: Path) -> None:
    made = keys.make_node(tmp_path, "a")
    node.FleetNode(Echo("a"), "127.0.0.1:1", made, made, 1.0)
    for path in (made.with_name("a.pub"), Path(__file__)):
        with pytest.raises(ConfigError, match="holds no private key of a node; fedmime deploy keys makes one"):
            node.FleetNode(Echo("a"), "127.0.0.1:1", made, path, 1.0)


def test_a_server_that_is_away_is_tried_for_as_long_as_patience_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedmime.errors import ClusterError

    monkeypatch.setattr(node, "_AGAIN", 0.1)
    keys.make_server(tmp_path / "server", ["127.0.0.1"])
    key = keys.make_node(tmp_path / "keys", "a")
    found = node.FleetNode(Echo("a"), "127.0.0.1:1", tmp_path / "server" / keys.AUTHORITY, key, 0.5)
    with pytest.raises(ClusterError, match=r"127\.0\.0\.1:1 does not answer"):
        found.serve()
