"""Fault 48: ten thousand messages that nobody should send, random ones and sound ones that were changed.

`make test` sends a quarter of them, `make test-slow` all.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.fleets import FEDAVG, FIRST, Meddling, Reply, apart, asked, deploy, frame, leaves, nodes, rewritten
from engine.setting import PROBLEM, a
from fedmime.aggregation.aggregator import PLAIN
from fedmime.aggregation.gate import Reason
from fedmime.deploy.layout import layout_of
from fedmime.deploy.messages import Answer, Ask, opened, packed
from fedmime.deploy.node import JaxNode
from fedmime.deploy.protocol import Frame, pack
from fedmime.deploy.replies import Asked, Inbox, Opener
from fedmime.deploy.transport import Failure
from fedmime.engine.cohort import Member

EVERYBODY = {"cohort_size": 5}
BAD = FIRST + 2

KEY = jax.random.key(0)
MODEL = jax.tree.map(np.asarray, PROBLEM.init(KEY))
OPENER = Opener(layout_of(FEDAVG, MODEL), PLAIN, KEY, 10.0)
RUN, NONCE = "0" * 32, "f" * 32


def _inbox(nodes: int = 1) -> Inbox:
    """Asked are as many nodes, from `BAD` on, for the same."""
    wanted = {BAD + i: Asked(i, Member(2 + i, 2, 1, 0, sends_gradient=True), NONCE, 0, True) for i in range(nodes)}
    return Inbox(RUN, 0, wanted, {"update": nodes}, OPENER, lambda *_: None)


def _conversation(state: Path) -> tuple[JaxNode, bytes, bytes, bytes]:
    """A node that keeps something between rounds, a hello, a request that it answers, and its answer."""
    scaffold = a.scaffold(0.1)
    transport = Meddling(nodes(scaffold, backend="local", state=state))
    deploy(scaffold, None, transport, rounds=1, **EVERYBODY)
    hello = next(request for node, request in transport.requests if node == BAD)
    request = next(request for node, request in transport.requests if node == BAD and asked(request) is not None)
    reply = next(reply for node, reply in reversed(transport.replies) if node == BAD)
    assert isinstance(reply, bytes)
    return transport._inner._nodes[BAD], hello, request, reply  # type: ignore[return-value]


def _reply() -> bytes:
    arrays = np.linspace(-1, 1, 15)
    return packed(Answer(RUN, 0, NONCE, 2, 1, 0.5, 0.0, True, True), arrays.tobytes())


def _mutated(data: bytes, seed: int) -> bytes:
    """Bytes flipped, cut, repeated, moved or replaced, or others altogether."""
    rng = random.Random(seed)
    if (way := rng.random()) < 0.2:
        return rng.randbytes(rng.randrange(400))
    if way < 0.6:
        return _altered(data, rng)
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 5, 20])):
        at = rng.randrange(len(changed) + 1)
        length = rng.choice([1, 1, 1, 2, 8, 64])
        action = rng.randrange(5)
        if action == 0:
            changed[at : at + length] = rng.randbytes(length)
        elif action == 1:
            del changed[at : at + length]
        elif action == 2:
            changed[at:at] = rng.randbytes(length)
        elif action == 3:
            changed[at:at] = changed[at : at + length] * rng.choice([1, 3, 50])
        else:
            old, new = rng.choice(_TOKENS), rng.choice(_TOKENS)
            changed = bytearray(bytes(changed).replace(old, new, 1))
        if not changed:
            return b""
    return bytes(changed)


def _altered(data: bytes, rng: random.Random) -> bytes:
    """A frame that is sound but for some of its fields or some numbers of its payload."""
    found = frame(data)
    fields, payload = dict(found.fields), bytearray(found.payload)
    for name in rng.sample(sorted(fields), rng.choice([0, 1, 1, 2])):
        values = [None, True, -1, 0, 1, 2**31, 10**30, 0.5, "", "x", [], {}, [[0, -1]], "f" * 32, rng.randrange(9)]
        fields[name] = rng.choice([*values, rng.choice(list(fields.values()))])
    for _ in range(rng.choice([0, 0, 1, 3]) if payload else 0):
        at = rng.randrange(0, len(payload), 8)
        payload[at : at + 8] = rng.choice([rng.randbytes(8), b"\xff" * 8, bytes(8), b"\0" * 6 + b"\xf0\x7f"])
    return pack(Frame(found.kind, fields, bytes(payload)))


_TOKENS = [
    b"0",
    b"1",
    b"2",
    b'"',
    b"true",
    b"false",
    b"null",
    b"[]",
    b"{}",
    b"-1",
    b"1e999",
    b"9" * 30,
    b"NaN",
    b":",
    b",",
]
_TOKENS += [b"update", b"points", b"nothing", b"prime", b"answer", b"ask", b"refusal", b"hello", b"\\ud800", b"\x00"]


MOST = {"few": 1000, "many": 6000}
HOW_MANY = pytest.mark.parametrize("many", ["few", pytest.param("many", marks=pytest.mark.slow)])


class Clock:
    """Times what messages make a process do, by the wall: a wait counts, too. Who takes long, takes it again.

    On a machine that others use any call may be slow once. A message that is to blame is slow every time.
    """

    def __init__(self, take: Callable[[bytes], Any]) -> None:
        self._take, self.longest = take, 0.0
        self._slow: list[bytes] = []

    @contextlib.contextmanager
    def __call__(self, message: bytes) -> Iterator[None]:
        began = time.monotonic()
        yield
        if (seconds := time.monotonic() - began) > 1.0:
            self._slow.append(message)
        else:
            self.longest = max(self.longest, seconds)

    def check(self) -> None:
        for message in self._slow:
            for _ in range(3):
                began = time.monotonic()
                self._take(message)
                if (seconds := time.monotonic() - began) < 1.0:
                    break
            assert seconds < 1.0, message[:500]
            self.longest = max(self.longest, seconds)


@HOW_MANY
def test_no_message_upsets_the_server(many: str, fact) -> None:
    """All of them come into one inbox, each from a node of its own; the sound reply that comes last still counts."""
    reply, fates, count = _reply(), set(), MOST[many]
    clock = Clock(lambda message: _inbox().take(BAD, message))
    inbox, nodes = _inbox(2 * count), itertools.count(BAD)

    @settings(max_examples=count)
    @given(st.integers(0, 2**40))
    def holds(seed: int) -> None:
        node, mutated = next(nodes), _mutated(reply, seed)
        before = dict(inbox.received), dict(inbox.refused), list(inbox.strays)
        with clock(mutated):
            inbox.take(node, mutated)
        received, refused, strays = inbox.received, inbox.refused, inbox.strays[len(before[2]) :]
        new = [received[place] for place in received.keys() - before[0].keys()]
        reasons = [refused[client] for client in refused.keys() - before[1].keys()]
        assert len(new) + len(reasons) + len(strays) == 1
        assert all(received[place] is found for place, found in before[0].items())
        assert before[1].items() <= refused.items()
        fates.update([reason.label for reason in [*reasons, *strays]] or ["accepted"])
        for found in new:
            send, add = found.update
            flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(send)])
            assert np.linalg.norm(flat) <= 10.0
            assert jax.tree.leaves(add) == []

    holds()
    assert {"accepted", "structure", "size", "shape", "round", "weight", "not_finite", "norm"} <= fates
    last = next(nodes)
    inbox.take(last, reply)
    assert inbox.received[last - BAD].answer == opened(frame(reply), Answer)
    assert not inbox.complete
    clock.check()
    fact("seconds for a fuzzed message at the server", clock.longest)


def _state(node: JaxNode, directory: Path) -> Any:
    """What a request could change: the run, the round and its arrays, and what is kept on disk."""
    session = node._session
    assert session is not None
    current = session._current
    held = None if current is None else {slot: np.asarray(array).tobytes() for slot, array in current.held.items()}
    kept = {str(file): file.read_bytes() for file in sorted(directory.rglob("*")) if file.is_file()}
    return id(session), session.run, current and (current.client, current.work.round), held, kept


@HOW_MANY
def test_no_message_upsets_a_node(many: str, tmp_path: Path, fact) -> None:
    node, hello, request, reply = _conversation(tmp_path)
    clock, answers, refusals = Clock(node.answer), 0, 0

    @settings(max_examples=2 * MOST[many] // 3)
    @given(st.integers(0, 2**40), st.booleans())
    def holds(seed: int, greeting: bool) -> None:
        nonlocal answers, refusals
        mutated = _mutated(hello if greeting else request, seed)
        before = _state(node, tmp_path)
        with clock(mutated):
            found = frame(node.answer(mutated))
        assert found.kind in ("refusal", "answer", "profile")
        answers += found.kind == "answer"  # a model or a round that was changed is as good as another
        if found.kind == "refusal":
            refusals += 1
            assert found.fields["words"].isprintable()
            if found.fields["reason"] not in ("data", "not_finite", "norm"):  # which computing shows
                assert _state(node, tmp_path) == before

    node.answer(hello)
    node.answer(request)
    holds()
    assert refusals > MOST[many] // 3
    again = opened(frame(request), Ask)
    node.answer(hello)
    assert node.answer(packed(again, frame(request).payload)) == reply
    clock.check()
    fact("seconds for a fuzzed message at a node", clock.longest)
    fact("fuzzed requests that a node could still answer", answers)


def test_no_profile_upsets_the_roster() -> None:
    """What nodes reply to greetings is changed in every way; the sound ones come through."""
    seeds = itertools.count()

    def meddle(node: int, request: bytes, reply: bytes | Failure) -> Sequence[Reply]:
        if asked(request) is not None or node < FIRST + 50:
            return [(node, reply)]
        assert isinstance(reply, bytes)
        return [(node, _mutated(reply, next(seeds))) for _ in range(20)]

    fleet = nodes(FEDAVG)
    liars = {FIRST + 50 + i: fleet[FIRST] for i in range(40)}
    run = deploy(FEDAVG, None, Meddling({**fleet, **liars}, meddle), **EVERYBODY)
    assert apart(run, deploy(FEDAVG, **EVERYBODY)) == 0.0
    assert leaves(run)


def test_a_message_that_is_too_long_is_not_decoded() -> None:
    """What is allocated for 64 MB that nobody asked for is less than that."""
    inbox, reply = _inbox(), _reply()
    huge = rewritten(reply, bytes(1 << 26))
    tracemalloc.start()
    inbox.take(BAD, huge)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert inbox.refused == {2: Reason.SIZE}
    assert peak < 1 << 20
