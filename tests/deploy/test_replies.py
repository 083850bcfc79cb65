"""The inbox of an exchange: the first sound reply of every node that was asked, as many as are wanted."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import fedmime as fm
from engine.setting import a, model, o
from fedmime.aggregation.encoder import GRADIENT, UPDATE
from fedmime.aggregation.gate import Reason
from fedmime.deploy import post
from fedmime.deploy.layout import layout_of
from fedmime.deploy.messages import Answer, packed, refusal
from fedmime.deploy.replies import Asked, Inbox, Opener
from fedmime.deploy.transport import Failure
from fedmime.engine.cohort import Member

g = fm.aggregation
RUN, KEY = "1" * 32, jax.random.key(3)
ALGORITHM = a.mime_lite(o.momentum(), 0.1)
LAYOUT = layout_of(ALGORITHM, model())
PLAIN = Opener(LAYOUT, g.chain(), KEY, 100.0)


def _asked(place: int, gradients: int = 1, train: bool = True) -> Asked:
    return Asked(place, Member(10 + place, 5, 2, 0, sends_gradient=True), f"{place:032x}", gradients, train)


def _reply(asked: Asked, payload: bytes | None = None, **changes: Any) -> bytes:
    steps = asked.member.steps if asked.train else 0
    answer = Answer(RUN, 0, asked.nonce, asked.member.size, steps, 1.0, 0.0, True, True)._replace(**changes)
    numbers = np.full(15 * (asked.gradients + asked.train), 0.5 + asked.place)
    return packed(answer, numbers.tobytes() if payload is None else payload)


def _inbox(*asked: Asked, opener: Opener = PLAIN, **targets: int) -> tuple[Inbox, list[tuple[int, Reason, str]]]:
    told: list[tuple[int, Reason, str]] = []
    log = lambda node, reason, words: told.append((node, reason, words))
    return Inbox(RUN, 0, dict(enumerate(asked)), targets, opener, log), told


def test_sound_replies_are_taken_and_counted() -> None:
    clients = [_asked(place) for place in range(3)]
    inbox, told = _inbox(*clients, gradient=3, update=3)
    for node in (2, 0, 1):
        assert not inbox.complete
        inbox.take(node, _reply(clients[node]))
    assert inbox.complete
    inbox.close()
    assert sorted(inbox.received) == [0, 1, 2]
    assert (inbox.refused, inbox.strays, told) == ({}, [], [])
    assert inbox.reported == {GRADIENT: 3, UPDATE: 3}
    found = inbox.received[1]
    np.testing.assert_array_equal(found.gradients[0].tree["w"], np.full((4, 3), 1.5))
    np.testing.assert_array_equal(found.update[0].tree["b"], np.full(3, 1.5))


def test_who_is_not_needed_any_more_is_neither_taken_nor_late() -> None:
    clients = [_asked(place) for place in range(4)]
    inbox, told = _inbox(*clients, gradient=2, update=2)
    for node in (3, 1, 0):
        inbox.take(node, _reply(clients[node]))
    assert inbox.complete
    inbox.close([_asked(7)])
    assert sorted(inbox.received) == [1, 3]
    assert (inbox.refused, told) == ({}, [])


def test_a_reply_that_is_refused_is_replaced_by_the_next() -> None:
    clients = [_asked(place) for place in range(3)]
    inbox, told = _inbox(*clients, gradient=2, update=2)
    inbox.take(0, _reply(clients[0], b""))
    inbox.take(1, _reply(clients[1]))
    assert not inbox.complete
    inbox.take(2, _reply(clients[2]))
    assert inbox.complete
    assert sorted(inbox.received) == [1, 2]
    assert inbox.refused == {10: Reason.SHAPE}
    assert told == [(0, Reason.SHAPE, "such a reply has 240 bytes, got 0")]
    assert inbox.reported == {GRADIENT: 3, UPDATE: 3}


def test_who_says_nothing_is_late_and_has_not_reported() -> None:
    clients = [_asked(place) for place in range(4)]
    inbox, _ = _inbox(*clients, gradient=4, update=4)
    inbox.take(0, _reply(clients[0]))
    inbox.take(1, Failure("unavailable"))
    inbox.close([_asked(5)])
    assert inbox.refused == {11: Reason.FAILED, 12: Reason.LATE, 13: Reason.LATE, 15: Reason.LATE}
    assert inbox.reported == {GRADIENT: 1, UPDATE: 1}
    assert not inbox.complete


def test_the_halves_of_a_split_cohort_are_counted_apart() -> None:
    probes, trains = [_asked(place, train=False) for place in (0, 1)], [_asked(place, 0) for place in (2, 3)]
    inbox, _ = _inbox(*probes, *trains, gradient=1, update=2)
    for node in (0, 1, 2):
        inbox.take(node, _reply([*probes, *trains][node]))
    assert not inbox.complete
    inbox.close()
    assert sorted(inbox.received) == [0, 2]
    assert inbox.received[0].update is None
    assert inbox.received[2].gradients == ()
    assert inbox.refused == {13: Reason.LATE}


@pytest.mark.parametrize(
    ("label", "reason"),
    [
        ("data", "DATA"),
        ("not_finite", "NOT_FINITE"),
        ("failed", "FAILED"),
        ("accepted", "FAILED"),
        ("nonsense", "FAILED"),
    ],
)
def test_a_node_may_refuse(label: str, reason: str) -> None:
    inbox, told = _inbox(_asked(0), gradient=1, update=1)
    inbox.take(0, refusal("9" * 32, "failed", "an older request"))
    assert inbox.strays == [Reason.ROUND]
    inbox.take(0, refusal(_asked(0).nonce, label, "words of the node"))
    assert inbox.refused == {10: Reason[reason]}
    assert told[-1] == (0, Reason[reason], "words of the node")


def test_a_larger_message_of_an_earlier_exchange_does_not_disqualify() -> None:
    """Its update is late, and the gradient that was asked for is still to come."""
    only = _asked(0, train=False)
    inbox, _ = _inbox(only, gradient=1)
    inbox.take(0, _reply(_asked(0), nonce="9" * 32))
    assert (inbox.strays, inbox.refused) == ([Reason.ROUND], {})
    inbox.take(0, _reply(only))
    assert sorted(inbox.received) == [0]


def test_private_messages_are_clipped_by_the_server_too() -> None:
    aggregator = g.chain(g.gaussian(1.0, 1.0))
    opener = Opener(LAYOUT, aggregator, KEY, 1e9)
    inbox, _ = _inbox(_asked(0), opener=opener, gradient=1, update=1)
    inbox.take(0, _reply(_asked(0), np.full(30, 1e6).tobytes()))
    found = inbox.received[0]
    for message in (found.gradients[0], found.update[0]):
        assert np.linalg.norm(np.concatenate([np.ravel(v) for v in jax.tree.leaves(message)])) <= 1 + 1e-9


@pytest.mark.parametrize(
    "aggregation",
    [g.quantize(5), g.top_k(0.3), g.chain(g.random_k(0.5), g.quantize(3)), g.low_rank(1), g.clip(0.5)],
    ids=["quantize", "top_k", "random_k", "low_rank", "clip"],
)
def test_any_bits_of_the_right_number_decode_to_something(aggregation: Any) -> None:
    """Whatever an encoder's indices, scales and integers are, what passes is finite and within the bound."""
    aggregator = g.chain(aggregation)
    opener, rng = Opener(LAYOUT, aggregator, KEY, 50.0), np.random.default_rng(0)
    size = opener.most
    fates = set()
    for trial in range(200):
        inbox, _ = _inbox(_asked(0), opener=opener, gradient=1, update=1)
        bits = rng.bytes(size) if trial % 2 else bytes([int(rng.integers(256))]) * size
        inbox.take(0, _reply(_asked(0), bits))
        fates.update(inbox.refused.values() if inbox.refused else [Reason.ACCEPTED])
        for found in inbox.received.values():
            for message in (found.gradients[0], found.update[0]):
                flat = np.concatenate([np.ravel(v) for v in jax.tree.leaves(message)])
                assert np.linalg.norm(flat) <= 50.0 * (1 + 1e-9)
    assert fates <= {Reason.ACCEPTED, Reason.NOT_FINITE, Reason.NORM}


def test_wires_are_described_without_computing_them() -> None:
    aggregator = g.chain(g.quantize(3))
    arrays = [np.ones(shape.shape) for shape in LAYOUT.gradient.shapes]
    sent = post.send(aggregator, arrays, (), KEY, 4, 0, kind=GRADIENT)
    like = post.wire_of(aggregator, LAYOUT.gradient, GRADIENT)
    assert jax.tree.structure(sent.wire) == jax.tree.structure(like)
