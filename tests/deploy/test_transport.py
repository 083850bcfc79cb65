"""Transports: replies by node, failures instead of exceptions, an end at the deadline."""

import pytest

from fedmime.deploy.transport import Failure, LoopTransport


class Echo:
    def __init__(self, word: bytes) -> None:
        self.word = word

    def answer(self, request: bytes) -> bytes:
        return self.word + request


class Crashing:
    def answer(self, request: bytes) -> bytes:
        raise RuntimeError("out of memory")


def test_every_node_gets_its_own_request() -> None:
    transport = LoopTransport({7: Echo(b"a"), 9: Echo(b"b")})
    assert list(transport.nodes()) == [7, 9]
    assert list(transport.exchange({9: b"1", 7: b"2"}, 10.0)) == [(9, b"b1"), (7, b"a2")]


def test_a_crashed_or_unknown_node_is_a_failure() -> None:
    transport = LoopTransport({1: Crashing(), 2: Echo(b"")})
    found = dict(transport.exchange({1: b"", 2: b"", 3: b""}, 10.0))
    assert found[2] == b""
    assert found[1] == Failure("RuntimeError: out of memory")
    assert isinstance(found[3], Failure)
    assert "3" in found[3].reason


@pytest.mark.parametrize("deadline", [-1.0, float("-inf")])
def test_nobody_is_asked_after_the_deadline(deadline: float) -> None:
    assert list(LoopTransport({1: Echo(b"")}).exchange({1: b""}, deadline)) == []
