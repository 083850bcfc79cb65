"""Fault 48: ten thousand messages that nobody should send, random ones and sound ones that were changed.

`make test` sends a quarter of them, `make test-slow` all.
"""

from __future__ import annotations

import contextlib
import copy
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

import fedmime as fm
from deploy.affine_setting import asks, greeting, shelve
from deploy.fleets import FEDAVG, FIRST, Meddling, Reply, apart, asked, deploy, frame, leaves, nodes, rewritten
from deploy.quadratic import Quadratic, before
from engine.setting import PROBLEM, a, o
from fedmime.aggregation import wire
from fedmime.aggregation.aggregator import PLAIN, Aggregator
from fedmime.aggregation.encoder import GRADIENT, UPDATE
from fedmime.aggregation.gate import Reason
from fedmime.deploy import post
from fedmime.deploy.affine_node import AffineNode
from fedmime.deploy.layout import layout_of
from fedmime.deploy.messages import Answer, Ask, Masked, Stage, opened, packed
from fedmime.deploy.node import JaxNode
from fedmime.deploy.protocol import Frame, pack
from fedmime.deploy.replies import Asked, Inbox, Opener, Reader
from fedmime.deploy.transport import Failure
from fedmime.engine.cohort import Member

g = fm.aggregation
EVERYBODY = {"cohort_size": 5}
BAD = FIRST + 2

KEY = jax.random.key(0)
MODEL = jax.tree.map(np.asarray, PROBLEM.init(KEY))
OPENER = Opener(layout_of(FEDAVG, MODEL), PLAIN, KEY, 10.0)
RUN, NONCE = "0" * 32, "f" * 32


def _inbox(nodes: int = 1, opener: Reader = OPENER, gradients: int = 0, train: bool = True) -> Inbox:
    """Asked are as many nodes, from `BAD` on, for the same."""
    members = [Member(2 + i, 2, 1, 0, sends_gradient=True) for i in range(nodes)]
    wanted = {BAD + i: Asked(i, member, NONCE, gradients, train) for i, member in enumerate(members)}
    return Inbox(RUN, 0, wanted, dict.fromkeys(wanted[BAD].roles, nodes), opener, lambda *_: None)


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


def _heard(inbox: Inbox, reply: bytes, count: int, clock: Clock) -> set[str]:
    """Send changed replies into one inbox, each from a node of its own; gives what became of them.

    The sound reply that comes last still counts.
    """
    fates: set[str] = set()
    nodes = itertools.count(BAD)

    @settings(max_examples=count)
    @given(st.integers(0, 2**40))
    def holds(seed: int) -> None:
        node, mutated = next(nodes), _mutated(reply, seed)
        earlier = dict(inbox.received), dict(inbox.refused), list(inbox.strays)
        with clock(mutated):
            inbox.take(node, mutated)
        received, refused, strays = inbox.received, inbox.refused, inbox.strays[len(earlier[2]) :]
        new = [received[place] for place in received.keys() - earlier[0].keys()]
        reasons = [refused[client] for client in refused.keys() - earlier[1].keys()]
        assert len(new) + len(reasons) + len(strays) == 1
        assert all(received[place] is found for place, found in earlier[0].items())
        assert earlier[1].items() <= refused.items()
        fates.update([reason.label for reason in [*reasons, *strays]] or ["accepted"])
        for message in [message for found in new for message in (*found.gradients, found.update)]:
            flat = np.concatenate([np.zeros(1), *(np.ravel(leaf) for leaf in jax.tree.leaves(message))])
            assert np.linalg.norm(flat) <= 10.0 * (1 + 1e-9)

    holds()
    last = next(nodes)
    inbox.take(last, reply)
    assert inbox.received[last - BAD].answer == opened(frame(reply), Answer)
    assert not inbox.complete
    clock.check()
    return fates


@HOW_MANY
def test_no_message_upsets_the_server(many: str, fact) -> None:
    clock = Clock(lambda message: _inbox().take(BAD, message))
    fates = _heard(_inbox(2 * MOST[many]), _reply(), MOST[many], clock)
    assert {"accepted", "structure", "size", "shape", "round", "weight", "not_finite", "norm"} <= fates
    fact("seconds for a fuzzed message at the server", clock.longest)


FORMS: dict[str, tuple[Aggregator, int, bool]] = {  # how messages are encoded, and what is asked for
    "a gradient": (PLAIN, 1, False),
    "a gradient and an update": (PLAIN, 1, True),
    "top_k": (g.chain(g.top_k(0.3)), 1, True),
    "quantize": (g.chain(g.quantize(4)), 1, True),
    "top_k, quantize": (g.chain(g.top_k(0.3), g.quantize(4)), 1, True),
}
BOTH = layout_of(a.mime_lite(o.momentum(), 0.1), MODEL)


def _encoded(aggregator: Aggregator, gradients: int, train: bool) -> bytes:
    """A sound reply of a client whose messages are encoded."""
    parcels = [(BOTH.gradient, GRADIENT)] * gradients + [(BOTH.update, UPDATE)] * train
    wires = [
        post.send(aggregator, [np.full(s.shape, 0.5, s.dtype) for s in parcel.shapes], (), KEY, 2, 0, kind=kind).wire
        for parcel, kind in parcels
        if parcel is not None
    ]
    answer = Answer(RUN, 0, NONCE, 2, int(train), 0.5, 0.0, True, True)
    return packed(answer, wire.pack(jax.device_get(wires)))


@HOW_MANY
@pytest.mark.parametrize("form", FORMS)
def test_no_message_of_any_form_upsets_the_server(form: str, many: str) -> None:
    aggregator, *asked_for = FORMS[form]
    opener = Opener(BOTH, aggregator, KEY, 10.0)
    clock = Clock(lambda message: _inbox(1, opener, *asked_for).take(BAD, message))
    fates = _heard(_inbox(MOST[many], opener, *asked_for), _encoded(*FORMS[form]), MOST[many] // 2, clock)
    assert {"accepted", "structure", "size", "shape", "round"} <= fates


@HOW_MANY
@pytest.mark.parametrize("stage", Stage)
def test_no_masked_reply_upsets_the_server(stage: Stage, many: str) -> None:
    """It counts or not; those of the others do, and the sum is revealed or given up."""
    pytest.importorskip("flwr")
    from deploy.secure.group import Group, random_levels
    from fedmime.deploy.secure.backend import _Reader
    from fedmime.deploy.secure.server import Aborted

    group = Group(random_levels((2, 3, 4, 5)))
    exchange = group.exchange()
    for each in Stage:
        replies = [group.answer(client, request) for client, request in exchange.requests().items()]
        if each is stage:
            break
        for client, reply in zip(exchange.clients, replies, strict=True):
            exchange.take(client, reply)
        exchange.advance()
    bad, *sound = [packed(Masked(RUN, 0, NONCE), reply) for reply in replies]
    clock, fates = Clock(lambda message: _inbox(4, _Reader(copy.deepcopy(exchange))).take(BAD, message)), set()

    @settings(max_examples=MOST[many] // 8)
    @given(st.integers(0, 2**40))
    def holds(seed: int) -> None:
        tried, mutated = copy.deepcopy(exchange), _mutated(bad, seed)
        inbox = _inbox(4, _Reader(tried))
        with clock(mutated):
            inbox.take(BAD, mutated)
        fates.update([reason.label for reason in [*inbox.refused.values(), *inbox.strays]] or ["accepted"])
        for node, reply in enumerate(sound, start=BAD + 1):
            inbox.take(node, reply)
        assert {1, 2, 3} <= inbox.received.keys()
        with contextlib.suppress(Aborted):
            tried.advance()
            assert stage is not Stage.REVEAL or tried.total().clients == (2, 3, 4, 5)

    holds()
    assert {"accepted", "structure", "masks"} <= fates
    clock.check()


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
        state = _state(node, tmp_path)
        with clock(mutated):
            found = frame(node.answer(mutated))
        assert found.kind in ("refusal", "answer", "profile")
        answers += found.kind == "answer"  # a model or a round that was changed is as good as another
        if found.kind == "refusal":
            refusals += 1
            assert found.fields["words"].isprintable()
            if found.fields["reason"] not in ("data", "not_finite", "norm"):  # which computing shows
                assert _state(node, tmp_path) == state

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


@HOW_MANY
@pytest.mark.parametrize("algorithm", [a.mime(o.adam(), 0.05), a.scaffold(0.05)], ids=["mime", "scaffold"])
def test_no_message_upsets_a_node_without_jax(algorithm: Any, many: str, tmp_path: Path) -> None:
    begun = before(algorithm)
    node, hello, requests = AffineNode(Quadratic(begun.columns), "a", tmp_path), greeting(begun), asks(begun)
    clock = Clock(node.answer)

    def sound() -> list[bytes]:
        shelve(begun, tmp_path)  # a changed request may well have it forgotten
        node.answer(hello)
        return [node.answer(request) for request in requests]

    @settings(max_examples=MOST[many] // 2)
    @given(st.integers(0, 2**40), st.sampled_from([hello, *requests]))
    def holds(seed: int, message: bytes) -> None:
        mutated = _mutated(message, seed)
        with clock(mutated):
            found = frame(node.answer(mutated))
        kinds.add(found.kind)
        if found.kind == "refusal":
            assert found.fields["words"].isprintable()
        if found.kind == "profile":
            sound()  # of the run that the other requests belong to

    kinds: set[str] = set()
    expected = sound()
    holds()
    assert kinds == {"refusal", "answer", "profile"}
    assert sound() == expected
    clock.check()


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
