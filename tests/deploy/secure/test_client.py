"""What a client refuses, whatever the server asks for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("flwr")

from deploy.secure.group import Group, random_levels
from fedmime.deploy.messages import Stage
from fedmime.deploy.secure import primitives
from fedmime.deploy.secure.client import Member, clients_of
from fedmime.deploy.secure.disclosures import Disclosures
from fedmime.deploy.secure.fixed_point import words_of
from fedmime.deploy.secure.options import MaskError, SecureSum
from fedmime.deploy.secure.primitives import PUBLIC_BYTES, SEALED_BYTES
from fedmime.deploy.secure.server import Exchange

FIVE = random_levels(range(5))  # with the default threshold, four of them must stay


def _at(stage: Stage) -> tuple[Group, Exchange]:
    """A group in which every stage before the given one is done."""
    group = Group(FIVE)
    stages = list(Stage)
    return group, group.play(until=stages[stages.index(stage) - 1])


def test_a_group_that_is_too_small_gets_no_shares() -> None:
    group = Group(FIVE)
    exchange = group.exchange()
    keys = {client: group.answer(client, request) for client, request in exchange.requests().items()}
    with pytest.raises(MaskError, match="at least 3 are needed, got 2"):
        group.members[0].shares([0, 1], keys[0] + keys[1])


def test_groups_that_hide_nobody_or_whose_sum_does_not_fit_get_no_keys() -> None:
    with pytest.raises(MaskError, match="at least 3 are needed, got 2"):
        Member(SecureSum(), 0, "one", Disclosures()).keys([0, 1])
    with pytest.raises(MaskError, match="a group must have 3 to 4 clients with minimum=3 and bits=30, got 5"):
        Member(SecureSum(30), 0, "one", Disclosures()).keys([0, 1, 2, 3, 4])


@pytest.mark.parametrize("stage", [Stage.INPUT, Stage.REVEAL])
def test_too_few_clients_get_no_message_and_no_shares(stage: Stage) -> None:
    group, exchange = _at(stage)
    few = exchange.requests()[0]._replace(clients=(0, 1, 2))
    with pytest.raises(MaskError, match="at least 4 are needed, got 3"):
        group.answer(0, few._replace(payload=few.payload[: 2 * SEALED_BYTES]))


def test_the_sum_over_other_clients_is_not_revealed_after_one_was() -> None:
    group, exchange = _at(Stage.REVEAL)
    request = exchange.requests()[0]
    first = group.answer(0, request)
    assert group.answer(0, request) == first
    with pytest.raises(MaskError, match="the sum over other clients was revealed before"):
        group.answer(0, request._replace(clients=(0, 1, 2, 3)))


def test_the_same_messages_are_not_revealed_in_another_sum_by_another_exchange() -> None:
    """The difference of two sums with and without a client would be its message."""
    group = Group(FIVE)
    group.total()
    np.testing.assert_array_equal(group.total().clients, range(5))
    exchange = group.play([(Stage.INPUT, 4)], until=Stage.INPUT)
    with pytest.raises(MaskError, match="was revealed before"):
        group.answer(0, exchange.requests()[0])
    group.name = "another round"
    assert group.total([(Stage.INPUT, 4), (Stage.REVEAL, 4)]).clients == (0, 1, 2, 3)


def test_of_no_client_both_secrets_are_given() -> None:
    """What a client reveals has one share per client: of the seed or of the key."""
    group, exchange = _at(Stage.REVEAL)
    all_seeds = len(group.answer(0, exchange.requests()[0]))
    assert all_seeds == 5 * primitives.SEED_SHARE_BYTES
    other, left = Group(FIVE), [(Stage.INPUT, 4)]
    exchange = other.play(left, until=Stage.INPUT)
    revealed = other.answer(0, exchange.requests()[0])
    assert len(revealed) == 4 * primitives.SEED_SHARE_BYTES + primitives.SECRET_SHARE_BYTES


@pytest.mark.parametrize("stage", list(Stage)[1:])
def test_clients_that_were_not_there_before_are_refused(stage: Stage) -> None:
    group, exchange = _at(stage)
    request = exchange.requests()[0]
    with pytest.raises(MaskError, match="took no part in the stage before"):
        group.answer(0, request._replace(clients=(*request.clients, 9)))


@pytest.mark.parametrize("stage", list(Stage)[1:])
def test_a_request_without_the_client_itself_is_refused(stage: Stage) -> None:
    group, exchange = _at(stage)
    with pytest.raises(MaskError, match="this client is not among"):
        group.answer(0, exchange.requests()[0]._replace(clients=(1, 2, 3, 4)))


def test_no_stage_can_be_repeated_or_left_out() -> None:
    group, exchange = _at(Stage.INPUT)
    member, request = group.members[0], exchange.requests()[0]
    with pytest.raises(MaskError, match="'shares' cannot come now: this exchange is at 'input'"):
        member.shares(list(request.clients), b"")
    with pytest.raises(MaskError, match="comes after a masked message was sent"):
        member.reveal(list(request.clients))
    with pytest.raises(MaskError, match="masked once"):
        member.masked(words_of(FIVE[0], [0]))
    member.receive(list(request.clients), request.payload)
    with pytest.raises(MaskError, match="comes after a masked message was sent"):
        member.reveal(list(request.clients))
    member.masked(words_of(FIVE[0], [0]))
    with pytest.raises(MaskError, match="masked once"):
        member.masked(words_of(FIVE[1], [0]))
    with pytest.raises(MaskError, match="cannot come now"):
        member.receive(list(request.clients), request.payload)


def test_keys_that_are_not_the_clients_own_are_refused() -> None:
    group, exchange = _at(Stage.SHARES)
    request = exchange.requests()[0]
    foreign = primitives.new_keys().public + primitives.new_keys().public
    with pytest.raises(MaskError, match="the group has other keys for this client than it sent"):
        group.answer(0, request._replace(payload=foreign + request.payload[2 * PUBLIC_BYTES :]))


def test_one_key_for_two_clients_is_refused() -> None:
    group, exchange = _at(Stage.SHARES)
    request = exchange.requests()[0]
    again = request.payload[: -2 * PUBLIC_BYTES] + request.payload[2 * PUBLIC_BYTES : 4 * PUBLIC_BYTES]
    with pytest.raises(MaskError, match="two public keys are the same"):
        group.answer(0, request._replace(payload=again))


def test_letters_for_another_client_are_refused() -> None:
    group, exchange = _at(Stage.INPUT)
    request = exchange.requests()[0]
    with pytest.raises(MaskError, match="changed on its way or is meant for another exchange"):
        group.answer(0, request._replace(payload=exchange.requests()[4].payload))


def test_a_clients_own_letters_are_not_taken_for_those_of_others() -> None:
    """Both ends of a pair have the same key, so a server can send a letter back to its writer."""
    group, exchange = _at(Stage.INPUT)
    request = exchange.requests()[0]
    with pytest.raises(MaskError, match="client 1 has sealed shares that are not this client's"):
        group.answer(0, request._replace(payload=group.sent[Stage.SHARES, 0]))


@settings(max_examples=60)
@given(st.sampled_from(list(Stage)[1:]), st.binary(max_size=600), st.booleans())
def test_hostile_payloads_are_refused(stage: Stage, data: bytes, right_length: bool) -> None:
    group, exchange = _at(stage)
    request = exchange.requests()[0]
    if right_length:
        data = (data * (len(request.payload) // max(len(data), 1) + 1))[: len(request.payload)]
    if stage is Stage.REVEAL:
        group.answer(0, request._replace(payload=data))  # it has no payload to look at
        return
    with pytest.raises(MaskError):
        group.answer(0, request._replace(payload=data))


_ANYTHING: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=8,
)


@given(_ANYTHING)
def test_lists_of_clients_hold_increasing_positions_only(value: Any) -> None:
    try:
        found = clients_of(value)
    except MaskError:
        return
    assert list(found) == sorted(set(value))
    assert all(type(one) is int and one >= 0 for one in found)


@pytest.mark.parametrize("value", [[], [1, 1], [2, 1], [-1, 0], [True, 2], [0, 2**31], list(range(129)), "01", None])
def test_other_lists_are_refused(value: Any) -> None:
    with pytest.raises(MaskError, match="positions in increasing order"):
        clients_of(value)


def test_a_client_keeps_its_own_threshold() -> None:
    """A server that plays with a lower one gets nothing of a client that has a higher one."""
    group = Group(FIVE)
    exchange = group.exchange()
    strict = Member(SecureSum(minimum=5), 0, "one", Disclosures())
    keys = {client: group.answer(client, request) for client, request in exchange.requests().items()}
    strict.keys(list(range(5)))
    with pytest.raises(MaskError, match="at least 5 are needed, got 4"):
        strict.shares([0, 1, 2, 3], b"".join(keys[client] for client in range(4)))
