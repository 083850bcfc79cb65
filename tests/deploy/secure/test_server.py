"""Both sides together: sums are exact, clients may leave at any stage, and below the threshold nothing is learnt."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("flwr")

from deploy.secure.group import Group, random_levels
from fedmime.deploy.messages import Stage
from fedmime.deploy.secure.fixed_point import Words
from fedmime.deploy.secure.options import MaskError, SecureSum
from fedmime.deploy.secure.primitives import PUBLIC_BYTES
from fedmime.deploy.secure.server import Aborted
from fedmime.errors import ConfigError

SIX = random_levels([2, 3, 5, 7, 11, 13])  # with the default threshold, four of them must stay


def _sum_of(levels: dict[int, np.ndarray], clients: tuple[int, ...]) -> np.ndarray:
    return np.sum([levels[client] for client in clients], axis=0)


@settings(max_examples=10)
@given(st.integers(8, 28), st.integers(3, 7), st.integers(0, 9), st.integers(0, 2**32))
def test_the_sum_is_the_sum_of_the_messages_bit_for_bit(bits: int, clients: int, entries: int, seed: int) -> None:
    levels = random_levels(range(0, 3 * clients, 3), entries, seed, bits)
    total = Group(levels, SecureSum(bits)).total()
    assert total.clients == tuple(levels)
    np.testing.assert_array_equal(total.levels, _sum_of(levels, total.clients))
    np.testing.assert_array_equal(total.scalars, [sum(levels)])


@settings(max_examples=20)
@given(st.dictionaries(st.sampled_from(sorted(SIX)), st.sampled_from(list(Stage)), max_size=4))
def test_clients_may_leave_at_every_stage(leaves: dict[int, Stage]) -> None:
    """Whoever has left before sending its message is not in the sum; who leaves after it is."""
    group = Group(SIX)
    keyed = 6 - list(leaves.values()).count(Stage.KEYS)
    enough = 6 - len(leaves) >= group.options.needed(keyed)
    stages = list(Stage)
    silent = [(stage, client) for client, first in leaves.items() for stage in stages[stages.index(first) :]]
    if not enough:
        with pytest.raises(Aborted, match=r"clients answered '.*'; at least . are needed"):
            group.total(silent)
        return
    total = group.total(silent)
    assert total.clients == tuple(client for client in SIX if leaves.get(client, Stage.REVEAL) is Stage.REVEAL)
    np.testing.assert_array_equal(total.levels, _sum_of(SIX, total.clients))
    np.testing.assert_array_equal(total.scalars, [sum(total.clients)])


@pytest.mark.parametrize("stage", list(Stage))
def test_below_the_threshold_nothing_is_revealed_and_the_next_exchange_works(stage: Stage) -> None:
    group = Group(SIX)
    few = [(stage, client) for client in (3, 5, 7, 11)]
    with pytest.raises(Aborted, match=f"2 of 6 clients answered '{stage.value}'"):
        group.total(few)
    assert stage is Stage.REVEAL or not any(record._known for record in group.disclosures.values())
    np.testing.assert_array_equal(group.total().levels, _sum_of(SIX, tuple(SIX)))


def test_fewer_shares_than_the_threshold_do_not_unmask() -> None:
    """Three of six clients reveal everything they hold: the server still cannot remove a single mask."""
    group = Group(SIX)
    exchange = group.play(until=Stage.INPUT)
    for client, request in itertools.islice(exchange.requests().items(), 3):
        exchange.take(client, group.answer(client, request))
    with pytest.raises(Aborted):
        exchange.advance()
    exchange._revealed = exchange._replies
    with pytest.raises(Aborted, match=r"do not belong together|do not cancel|must have 16 bytes"):
        exchange.total()


def test_messages_on_the_way_look_random() -> None:
    """Of constant messages, masked entries have as many ones as zeros and no relation to the message."""
    levels = {client: np.full(20_000, 77) for client in range(3)}
    group = Group(levels)
    group.play()
    words = [Words.unpack(group.sent[Stage.INPUT, client], group.layout) for client in levels]
    for masked in words:
        uniform = masked.entries / 2.0**group.layout.width
        assert abs(uniform.mean() - 0.5) < 5 * 12**-0.5 / 20_000**0.5
        assert len(np.unique(masked.entries)) > 19_000
    pairs = itertools.combinations([masked.entries.astype(float) for masked in words], 2)
    assert all(abs(np.corrcoef(a, b)[0, 1]) < 5 / 20_000**0.5 for a, b in pairs)


def test_every_exchange_has_masks_of_its_own() -> None:
    group = Group(random_levels(range(3)))
    group.play()
    first = group.sent[Stage.INPUT, 0]
    group.play()
    assert group.sent[Stage.INPUT, 0] != first


@settings(max_examples=60)
@given(st.sampled_from(list(Stage)), st.binary(max_size=600), st.booleans())
def test_hostile_replies_cost_their_sender_only(stage: Stage, data: bytes, right_length: bool) -> None:
    """Any bytes in place of a reply are refused, or do no harm, or the exchange is given up. Nothing else is raised."""
    group, hostile = Group(SIX), 5
    exchange = group.exchange()
    try:
        for now in Stage:
            for client, request in exchange.requests().items():
                reply = group.answer(client, request)
                if (now, client) == (stage, hostile):
                    reply = (data * (len(reply) // max(len(data), 1) + 1))[: len(reply)] if right_length else data
                try:
                    exchange.take(client, reply)
                except MaskError:
                    assert client == hostile
            exchange.advance()
        total = exchange.total()
    except (Aborted, MaskError):
        return
    honest = tuple(client for client in total.clients if client != hostile)
    assert len(honest) == 5
    if hostile not in total.clients or stage is Stage.REVEAL:
        np.testing.assert_array_equal(total.levels, _sum_of(SIX, total.clients))


def test_wrong_shares_are_noticed() -> None:
    """A share with the right number and a wrong value: the sum would be noise, and is not returned."""

    def change(stage: Stage, client: int, reply: bytes) -> bytes:
        return reply[:4] + bytes([reply[4] ^ 1]) + reply[5:] if (stage, client) == (Stage.REVEAL, 2) else reply

    with pytest.raises(Aborted, match=r"do not belong together|do not cancel|must have 16 bytes"):
        Group(SIX).play(change=change).total()


def test_a_wrong_private_key_of_a_client_that_left_is_noticed() -> None:
    def change(stage: Stage, client: int, reply: bytes) -> bytes:
        return reply[:4] + bytes([reply[4] ^ 1]) + reply[5:] if (stage, client) == (Stage.REVEAL, 3) else reply

    exchange = Group(SIX).play([(Stage.INPUT, 2), (Stage.REVEAL, 2)], change=change)
    with pytest.raises(Aborted, match=r"client 2's private key give another key|do not belong together|must have 48"):
        exchange.total()


def test_keys_of_another_client_are_refused_before_anybody_sees_them() -> None:
    group = Group(SIX)
    exchange = group.exchange()
    first = group.answer(2, exchange.requests()[2])
    exchange.take(2, first)
    for copied in (first, first[PUBLIC_BYTES:] + first[:PUBLIC_BYTES]):
        with pytest.raises(MaskError, match="two public keys are the same"):
            exchange.take(3, copied)


def test_replies_that_nobody_asked_for_are_refused() -> None:
    group = Group(SIX)
    exchange = group.exchange()
    reply = group.answer(2, exchange.requests()[2])
    exchange.take(2, reply)
    with pytest.raises(MaskError, match="client 2 was not asked, or has answered before"):
        exchange.take(2, reply)
    with pytest.raises(MaskError, match="client 4 was not asked"):
        exchange.take(4, reply)


def test_shares_that_are_not_the_clients_own_are_refused() -> None:
    group = Group(SIX)
    exchange = group.play(until=Stage.INPUT)
    reply = group.answer(3, exchange.requests()[3])
    with pytest.raises(MaskError, match="client 2 has revealed shares that are not its own"):
        exchange.take(2, reply)


def test_a_group_that_hides_nobody_is_refused() -> None:
    with pytest.raises(ConfigError, match="a group must have 3 to 128 clients with minimum=3 and bits=20, got 2"):
        Group(random_levels(range(2))).exchange()
