"""The roster: who may speak for whom, and what becomes of those who may not."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

import fedmime as fm
from fedmime.deploy.fleet import Registered
from fedmime.deploy.messages import Answer, Hello, Profile, opened, packed, refusal
from fedmime.deploy.protocol import unpack
from fedmime.deploy.roster import Roster
from fedmime.deploy.transport import Failure
from fedmime.errors import Stopped

RUN, DIGEST = "1" * 32, "d" * 64
HELLO = Hello(RUN, "0" * 32, "1.0", 0, 10, 1, None, False, DIGEST, None)

Reply = Callable[[Hello], bytes | Failure | None]


def _named(name: str, **changes: Any) -> Reply:
    """A node that introduces itself, perhaps wrongly."""

    def reply(hello: Hello) -> bytes:
        profile = Profile(RUN, hello.nonce, name, 5, DIGEST, "1.0", "jax", DIGEST, DIGEST)
        return packed(profile._replace(**changes))

    return reply


class Scripted:
    """Nodes whose replies to greetings are given; None is no reply."""

    def __init__(self, replies: dict[int, Reply]) -> None:
        self.replies, self.greeted = replies, []

    def nodes(self) -> Sequence[int]:
        return list(self.replies)

    def exchange(self, requests: Mapping[int, bytes], deadline: float) -> Iterator[tuple[int, bytes | Failure]]:
        for node, request in requests.items():
            self.greeted.append(node)
            reply = self.replies[node](opened(unpack(request, 0), Hello))
            if reply is not None:
                yield node, reply


def _roster(replies: dict[int, Reply]) -> tuple[Roster, Scripted]:
    transport = Scripted(replies)
    return Roster(
        transport,
        HELLO,
        DIGEST,
        {"affine": "its dialect 'affine' cannot"},
        lambda name: f"<{name}>",
        most_examples=1000,
    ), transport


def _greet(roster: Roster, transport: Scripted) -> None:
    for node, reply in transport.exchange(roster.greetings(), 1.0):
        assert roster.meet(node, reply)


def test_clients_are_gathered_in_the_order_of_their_names() -> None:
    roster, _ = _roster({1: _named("b"), 2: _named("a"), 3: _named("c")})
    assert [client.name for client in roster.gather(3, 10.0)] == ["a", "b", "c"]
    assert roster.nodes() == {"a": 2, "b": 1, "c": 3}
    assert roster.dialect(1) == "jax"


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (_named("a", version="0.9"), "its version is '0.9'"),
        (_named("a", configuration="e" * 64), "its configuration"),
        (_named("a", parameters="e" * 64), "its model"),
        (_named("a", dialect="affine"), "its dialect 'affine'"),
        (_named("a", examples=1001), "weight: it claims 1,001 examples; accepted are at most 1,000 (most_examples)"),
        (lambda hello: refusal(hello.nonce, "failed", "no such setting"), "it refuses: no such setting"),
        (lambda hello: refusal("", "structure", "what?"), "it refuses: what"),
        (lambda hello: b"anything", "a frame"),
        (lambda hello: packed(HELLO)[:-1], "claims"),
    ],
)
def test_who_does_not_fit_is_refused_and_not_greeted_again(reply: Reply, words: str, caplog: Any) -> None:
    roster, transport = _roster({1: reply, 2: _named("b")})
    for _ in range(3):
        _greet(roster, transport)
    assert roster.nodes() == {"b": 2}
    assert transport.greeted == [1, 2]
    assert f"node 1 is refused: {words}" in caplog.text or words in caplog.text


@pytest.mark.parametrize(("epochs", "taken"), [(1, 2**31 - 1), (100, 100 * 2**22)])
def test_a_client_whose_round_the_engine_would_refuse_is_refused_first(epochs: int, taken: int, caplog: Any) -> None:
    """It would otherwise end the run, whose directory has been written by then."""
    transport = Scripted({1: _named("a", examples=taken // epochs), 2: _named("b", examples=2**20)})
    hello = HELLO._replace(epochs=epochs, batch_size=None)
    roster = Roster(transport, hello, DIGEST, {}, str)
    _greet(roster, transport)
    assert roster.nodes() == {"b": 2}
    assert f"weight: it claims {taken // epochs:,} examples; accepted are at most" in caplog.text


def test_who_has_left_may_come_back_mended() -> None:
    roster, transport = _roster({1: _named("a", version="0.9")})
    _greet(roster, transport)
    del transport.replies[1]
    _greet(roster, transport)
    transport.replies[1] = _named("a")
    _greet(roster, transport)
    assert roster.nodes() == {"a": 1}


@pytest.mark.parametrize(
    "other",
    [
        lambda hello: None,
        lambda hello: Failure("unavailable"),
        _named("a", nonce="9" * 32),
        _named("a", run="9" * 32),
        lambda hello: refusal("9" * 32, "failed", "an older request"),
        lambda hello: packed(Answer(RUN, 3, "9" * 32, 1, 1, 0.0, 0.0, True, True), bytes(1000)),
    ],
)
def test_what_is_no_introduction_is_passed_over(other: Reply) -> None:
    """A late answer, a failure, or silence: the node is greeted again."""
    roster, transport = _roster({1: other})
    _greet(roster, transport)
    assert roster.nodes() == {}
    transport.replies[1] = _named("a")
    _greet(roster, transport)
    assert roster.nodes() == {"a": 1}


def test_an_introduction_that_was_late_counts() -> None:
    roster, transport = _roster({1: lambda hello: None})
    first = opened(unpack(roster.greetings()[1], 0), Hello)
    roster.greetings()
    late = _named("a")(first)
    assert late is not None
    assert roster.meet(1, late)
    assert roster.nodes() == {"a": 1}
    assert not roster.meet(1, late)  # nothing is awaited any more
    assert transport.greeted == []


def test_one_node_speaks_for_one_client(caplog: Any) -> None:
    roster, transport = _roster({1: _named("a"), 2: _named("a"), 3: _named("c")})
    _greet(roster, transport)
    assert roster.nodes() == {"a": 1, "c": 3}
    assert "node 2 is refused: it claims to be <a>, for whom node 1 speaks" in caplog.text
    roster.doubt(3)
    transport.replies[3] = _named("d")
    _greet(roster, transport)
    assert roster.nodes() == {"a": 1}
    assert "it was <c> and now claims to be <d>" in caplog.text
    roster.doubt(1)
    assert roster.nodes() == {}
    transport.replies[4] = _named("a")  # while node 1 is doubted, its client is still its own
    _greet(roster, transport)
    assert roster.nodes() == {"a": 1}


def test_a_key_speaks_for_its_own_client(caplog: Any) -> None:
    """Node 1 takes the name of another client before the run begins; node 3's key is not known yet."""
    owners = {1: "a", 2: "b"}
    transport = Scripted({1: _named("b"), 2: _named("b"), 3: _named("c")})
    roster = Roster(transport, HELLO, DIGEST, {}, lambda name: f"<{name}>", lambda: owners)
    _greet(roster, transport)
    assert roster.nodes() == {"b": 2}
    assert transport.greeted == [1, 2]
    assert "node 1 is refused: it has the key of <a> and claims to be <b>" in caplog.text
    owners[3] = "c"
    _greet(roster, transport)
    assert roster.nodes() == {"b": 2, "c": 3}
    del owners[2]  # its key was revoked
    _greet(roster, transport)
    assert roster.nodes() == {"c": 3}


def test_only_those_who_were_there_at_the_beginning_take_part(caplog: Any) -> None:
    roster, transport = _roster({1: _named("a"), 2: _named("b"), 3: _named("c", data="e" * 64), 4: _named("e")})
    _greet(roster, transport)
    roster.enrol([Registered(name, 5, DIGEST) for name in ("a", "c", "d", "f")])
    assert roster.nodes() == {"a": 1}
    assert "<b> did not belong to the run when it began" in caplog.text
    assert "<c> has other data than when the run began" in caplog.text
    transport.replies |= {5: _named("d"), 6: _named("f", examples=6), 7: _named("g")}
    _greet(roster, transport)
    assert roster.nodes() == {"a": 1, "d": 5}


class Patient(Scripted):
    """An exchange that lasts until every node has replied, as those over a network do; time passes in it, too."""

    def __init__(self, replies: dict[int, Reply], monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(replies)
        self.now, self.comes = 0.0, 0.0
        monkeypatch.setattr("fedmime.deploy.roster.time", self)

    def nodes(self) -> Sequence[int]:
        return [node for node in self.replies if node == 1 or self.now >= self.comes]

    def exchange(self, requests: Mapping[int, bytes], deadline: float) -> Iterator[tuple[int, bytes | Failure]]:
        replied = 0
        for node, reply in super().exchange(requests, deadline):
            replied += 1
            yield node, reply
        self.now += deadline if replied < len(requests) else 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize("comes", [1.0, 30.0, 300.0])
def test_a_silent_node_keeps_nobody_waiting(comes: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others come while its introduction is awaited; so does its own, when it has found its voice."""
    transport = Patient({1: lambda hello: None, 2: _named("b"), 3: _named("c")}, monkeypatch)
    transport.comes = comes
    roster = Roster(transport, HELLO, DIGEST, {}, str)
    assert [client.name for client in roster.gather(2, 600.0)] == ["b", "c"]
    assert transport.now < comes + 21
    assert transport.greeted.count(1) <= 3 + comes / 20
    transport.replies[1] = _named("a")
    assert [client.name for client in roster.gather(3, 600.0)] == ["a", "b", "c"]


def test_a_silent_node_does_not_lengthen_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    transport = Patient({1: lambda hello: None}, monkeypatch)
    with pytest.raises(fm.ClusterError, match="0 of 1 nodes joined within 47 s"):
        Roster(transport, HELLO, DIGEST, {}, str).gather(1, 47.0)
    assert transport.now == pytest.approx(47.0)


def test_a_signal_ends_the_wait() -> None:
    """Also that for enough of the nodes in a round, which then goes on with those that are there."""
    signals = iter([None, None, 15, 15, 15])
    roster = Roster(Scripted({1: _named("a")}), HELLO, DIGEST, {}, str, stop=lambda: next(signals))
    with pytest.raises(Stopped, match="stopped by signal 15 while nodes were waited for") as stopped:
        roster.gather(2, 600.0)
    assert stopped.value.exit_code == 143
    assert not roster.wait(lambda: False, time.monotonic() + 600.0)


def test_waiting_ends_with_the_time() -> None:
    roster, transport = _roster({1: _named("a")})
    began = time.monotonic()
    with pytest.raises(fm.ClusterError, match=r"1 of 2 nodes joined within 0\.05 s"):
        roster.gather(2, 0.05)
    assert time.monotonic() - began >= 0.05
    transport.replies[2] = _named("b")
    assert [client.name for client in roster.gather(2, 5.0)] == ["a", "b"]
