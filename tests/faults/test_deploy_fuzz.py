"""Fault 48: ten thousand messages that nobody should send, random ones and sound ones that were changed.

`make test` sends a quarter of them, `make test-slow` all.
"""

from __future__ import annotations

import itertools
import random
import time
import tracemalloc
from collections.abc import Sequence

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.fleets import FEDAVG, FIRST, Meddling, Reply, apart, asked, deploy, frame, leaves, nodes, rewritten
from engine.setting import PROBLEM
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


def _inbox() -> Inbox:
    wanted = {BAD: Asked(0, Member(2, 2, 1, 0, probes=True), NONCE, 0, True)}
    return Inbox(RUN, 0, wanted, {"update": 1}, OPENER, lambda *_: None)


def _conversation() -> tuple[JaxNode, bytes, bytes, bytes]:
    """A node, a hello, a request that it answers, and its answer."""
    transport = Meddling(nodes(FEDAVG, backend="local"))
    deploy(FEDAVG, None, transport, rounds=1, **EVERYBODY)
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


@pytest.mark.parametrize("messages", [1500, pytest.param(6000, marks=pytest.mark.slow)])
def test_no_message_upsets_the_server(messages: int, fact) -> None:
    reply, longest, fates = _reply(), 0.0, set()

    @settings(max_examples=messages)
    @given(st.integers(0, 2**40))
    def holds(seed: int) -> None:
        nonlocal longest
        inbox, mutated = _inbox(), _mutated(reply, seed)
        began = time.process_time()
        inbox.take(BAD, mutated)
        longest = max(longest, time.process_time() - began)
        assert len(inbox.received) + len(inbox.refused) + len(inbox.strays) == 1
        fates.update([reason.label for reason in [*inbox.refused.values(), *inbox.strays]] or ["accepted"])
        for found in inbox.received.values():
            send, add = found.update
            flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(send)])
            assert np.linalg.norm(flat) <= 10.0
            assert jax.tree.leaves(add) == []

    holds()
    assert {"accepted", "structure", "size", "shape", "round", "weight", "not_finite", "norm"} <= fates
    assert longest < 1.0
    fact("CPU seconds for a fuzzed message at the server", longest)


@pytest.mark.parametrize("messages", [1000, pytest.param(4000, marks=pytest.mark.slow)])
def test_no_message_upsets_a_node(messages: int, fact) -> None:
    node, hello, request, reply = _conversation()
    longest, answers = 0.0, 0
    state = node._session  # type: ignore[attr-defined]

    @settings(max_examples=messages)
    @given(st.integers(0, 2**40), st.booleans())
    def holds(seed: int, greeting: bool) -> None:
        nonlocal longest, answers
        mutated = _mutated(hello if greeting else request, seed)
        began = time.process_time()
        found = frame(node.answer(mutated))
        assert found.kind in ("refusal", "answer", "profile")
        answers += found.kind == "answer"  # a model or a round that was changed is as good as another
        if found.kind == "refusal":
            longest = max(longest, time.process_time() - began)
            assert found.fields["words"].isprintable()

    holds()
    assert state is not None
    again = opened(frame(request), Ask)
    node.answer(hello)
    assert node.answer(packed(again, frame(request).payload)) == reply
    assert longest < 1.0
    fact("CPU seconds for a fuzzed message at a node", longest)
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
