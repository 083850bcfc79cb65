"""The transport over Flower's grid: one node can neither delay nor lose another one's reply."""

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from fedmime.deploy.flower import records
from fedmime.deploy.flower.grid import GridTransport
from fedmime.deploy.transport import Failure
from fedmime.errors import ClusterError

flwr = pytest.importorskip("flwr.app")

Act = Callable[[bytes], Any]
"""What a node does with a request: bytes or an `Error` are its reply, None is none yet, an exception damages it."""


@pytest.fixture(autouse=True)
def _in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Flower sets in a ServerApp's process."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class FakeGrid:
    """A grid whose nodes answer when their replies are looked for."""

    def __init__(self, nodes: dict[int, Act]) -> None:
        self.acts, self.sent, self.looks = nodes, {}, 0
        self.ttl: list[float] = []

    def get_node_ids(self) -> Iterable[int]:
        return [*reversed(self.acts)]

    def push_messages(self, messages: Iterable[Any]) -> list[str | None]:
        ids: list[str | None] = []
        for message in messages:
            node = message.metadata.dst_node_id
            assert message.metadata.message_type == "query.fedmime"
            self.ttl.append(message.metadata.ttl)
            message.metadata.__dict__["_message_id"] = f"m{len(self.sent)}"
            self.sent[f"m{len(self.sent)}"] = message
            ids.append(message.metadata.message_id if node in self.acts else None)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Any]:
        self.looks += 1
        (message_id,) = message_ids  # one at a time
        message = self.sent[message_id]
        found = self.acts[message.metadata.dst_node_id](records.unwrapped(message.content, 1 << 20))
        if found is None:
            return []
        content = found if isinstance(found, flwr.Error | flwr.RecordDict) else records.wrapped(found)
        return [flwr.Message(content, reply_to=message)]


def exchanged(nodes: dict[int, Act], deadline: float = 20.0, most: int = 1000) -> dict[int, Any]:
    grid: Any = FakeGrid(nodes)
    return dict(GridTransport(grid, most).exchange({node: b"ask %d" % node for node in nodes}, deadline))


def test_nodes_are_sorted_and_replies_come_from_them() -> None:
    grid: Any = FakeGrid({2: bytes.upper, 1: bytes.upper})
    transport = GridTransport(grid, 1000)
    assert transport.nodes() == [1, 2]
    assert dict(transport.exchange({1: b"one", 2: b"two"}, 20)) == {1: b"ONE", 2: b"TWO"}
    assert dict(transport.exchange({}, 20)) == {}
    assert all(20 < ttl < 60 for ttl in grid.ttl)  # a message does not outlive its deadline by much


def test_replies_come_as_they_arrive_and_missing_ones_end_with_the_deadline() -> None:
    first = threading.Event()
    nodes: dict[int, Act] = {1: lambda _: b"late" if first.is_set() else None, 2: lambda _: b"early", 3: lambda _: None}
    grid: Any = FakeGrid(nodes)
    replies = GridTransport(grid, 1000).exchange(dict.fromkeys(nodes, b""), 3.0)
    assert next(replies) == (2, b"early")
    first.set()
    assert next(replies) == (1, b"late")
    assert list(replies) == []
    looks = grid.looks
    time.sleep(0.5)
    assert grid.looks <= looks + 1  # nobody looks any more


def test_an_exchange_that_is_left_looks_no_more() -> None:
    grid: Any = FakeGrid({1: lambda _: b"", 2: lambda _: None})
    replies = GridTransport(grid, 1000).exchange({1: b"", 2: b""}, 1000.0)
    next(replies)
    replies.close()
    looks = grid.looks
    time.sleep(0.5)
    assert grid.looks <= looks + 1


def test_a_node_that_stalls_stalls_nobody_else() -> None:
    """Flower waits for records that were announced and never come."""
    over = threading.Event()
    found = exchanged({1: lambda _: over.wait(20) and None, 2: bytes.upper}, deadline=1.0)
    over.set()
    assert found == {2: b"ASK 2"}


def test_what_a_node_does_wrong_costs_its_reply_only() -> None:
    def damaged(_: bytes) -> bytes:
        raise KeyError("Array")

    found = exchanged(
        {
            1: damaged,
            2: lambda _: flwr.Error(2, "it\nraised"),
            3: lambda _: b"x" * 1001,
            4: lambda _: flwr.RecordDict({"other": flwr.ConfigRecord({"a": 1})}),
            5: bytes.upper,
        }
    )
    assert found.pop(5) == b"ASK 5"
    reasons = {node: failure.reason for node, failure in found.items() if isinstance(failure, Failure)}
    assert reasons == {
        1: "KeyError: 'Array'",
        2: "Flower's error 2: it raised",
        3: "a message has 1001 bytes, accepted are at most 1000",
        4: "the record 'other' is no part of a message of fedmime",
    }


def test_a_node_that_left_fails_at_once() -> None:
    grid: Any = FakeGrid({1: bytes.upper})
    found = dict(GridTransport(grid, 1000).exchange({1: b"a", 7: b"b"}, 1000.0))
    assert found == {1: b"A", 7: Failure("the SuperLink does not know the node any more")}


def test_the_end_of_the_run_is_no_failure_of_a_node() -> None:
    import httpx
    from flwr.supercore.run import RunNotRunningException

    def stopped(_: bytes) -> bytes:
        raise RunNotRunningException

    def lost(_: bytes) -> bytes:
        raise httpx.ConnectError("refused")

    grid: Any = FakeGrid({})
    for act, words in [(stopped, "the run was stopped"), (lost, "the SuperLink is lost: refused")]:
        grid.get_node_ids = lambda act=act: act(b"")
        with pytest.raises(ClusterError, match=words):
            GridTransport(grid, 1000).nodes()
    with pytest.raises(ClusterError, match="the run was stopped"):
        exchanged({1: stopped})
    with pytest.raises(ClusterError, match="the SuperLink is lost: refused"):
        exchanged({1: lost})


_BOMB = """
import resource
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.supercore.inflatable import inflatable_object as o
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from fedmime.deploy.flower.grid import refuse_arrays
import json

chunk = b"\\0" * (1 << 20)
array = Array("uint8", (1 << 20,), "numpy.ndarray", chunk)
body = json.dumps({"dtype": "uint8", "shape": [1], "stype": "", "arraychunk_ids": [0] * 1_000_000}).encode()
child = next(iter(array.children))
bomb = f"Array {child} {len(body)}".encode() + b"\\0" + body  # a terabyte in four megabytes
contents = {"bomb": bomb, child: next(iter(array.children.values())).deflate()}
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
if REFUSE:
    refuse_arrays()
try:
    inflate_object_from_contents("bomb", contents)
except (KeyError, MemoryError) as error:
    print(type(error).__name__)
"""


@pytest.mark.parametrize(("refuse", "told"), [(True, "KeyError"), (False, "MemoryError")])
def test_a_bomb_is_not_inflated(refuse: bool, told: str) -> None:
    """Without our refusal it would be: should Flower mend that, this test fails, and the refusal can go."""
    import subprocess
    import sys

    program = f"REFUSE = {refuse}\n{_BOMB}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == told, done.stderr
