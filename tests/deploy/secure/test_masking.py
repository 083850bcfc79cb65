"""A node's part in masked sums: requests of one exchange belong together, and messages leave it masked or not."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("flwr")

from fedmime.deploy.messages import NEVER, Ask, Mask, Stage, packed
from fedmime.deploy.protocol import FrameError
from fedmime.deploy.secure.disclosures import Disclosures
from fedmime.deploy.secure.fixed_point import Layout, step_of
from fedmime.deploy.secure.masking import Contribution, Masking
from fedmime.deploy.secure.options import MaskError, SecureSum
from fedmime.deploy.secure.server import Exchange, Request

RUN, NONCE, EXCHANGE = "0" * 32, "f" * 32, "e" * 32
OPTIONS = SecureSum()
CLIENTS = (1, 4, 6)
WEIGHTS = {1: (1.0, 0.5), 4: (0.25, 1.0), 6: (0.5, 0.125)}
MESSAGE = np.array([0.3, -0.1])


def _compute(ask: Ask, payload: bytes) -> Contribution:
    if payload != b"arrays":
        raise FrameError("it has other arrays")
    random = [np.random.default_rng([ask.client, number]) for number in range(2)]
    update = np.array([0.2 * ask.client])
    return Contribution([[MESSAGE]], [update], [update], (2.0, 0.5), [1.5, ask.client], random)


def _ask(number: int, **changes: Any) -> bytes:
    return packed(Ask(RUN, 3, NONCE, number, "points", True, -1, NEVER, 0)._replace(**changes), b"arrays")


def _request(client: int, request: Request, **changes: Any) -> tuple[Mask, bytes]:
    """A request as it arrives at a node."""
    fields = (EXCHANGE, request.stage.value, client, "points", True, request.clients, WEIGHTS[client])
    payload = request.payload + (_ask(client) if request.stage is Stage.INPUT else b"")
    return Mask(RUN, 3, NONCE, *fields)._replace(**changes), payload


def _play(until: Stage | None = None) -> tuple[Exchange, dict[int, Masking]]:
    """Three nodes and a server; up to a stage, or all of them."""
    nodes = {client: Masking(OPTIONS, Disclosures(), _compute) for client in CLIENTS}
    exchange = Exchange(OPTIONS, CLIENTS, Layout(4, 2, OPTIONS.width(3)))
    for stage in Stage:
        if stage is until:
            break
        for client, request in exchange.requests().items():
            exchange.take(client, nodes[client].answer(*_request(client, request)))
        exchange.advance()
    return exchange, nodes


def test_the_server_gets_weighted_sums() -> None:
    total = _play()[0].total()
    gradient, update = total.levels[:2] * step_of(0.5, OPTIONS), total.levels[2:] * step_of(2.0, OPTIONS)
    weights = np.array(list(WEIGHTS.values()))
    np.testing.assert_allclose(gradient, weights[:, 1].sum() * MESSAGE, atol=1e-5)
    np.testing.assert_allclose(update[0], sum(0.2 * client * WEIGHTS[client][0] for client in CLIENTS), atol=1e-4)
    np.testing.assert_allclose(update[1], 0.2 * sum(CLIENTS), atol=1e-4)
    np.testing.assert_allclose(total.scalars, [4.5, sum(CLIENTS)])


@pytest.mark.parametrize("stage", [Stage.SHARES, Stage.INPUT, Stage.REVEAL])
@pytest.mark.parametrize(
    "changes",
    [
        {"round": 4},
        {"run": "1" * 32},
        {"exchange": "1" * 32},
        {"client": 4},
        {"gradients": "nothing"},
        {"train": False},
        {"weights": (1.0, 1.0)},
    ],
    ids=str,
)
def test_requests_of_another_exchange_are_refused(stage: Stage, changes: dict[str, Any]) -> None:
    exchange, nodes = _play(stage)
    request, payload = _request(1, exchange.requests()[1])
    with pytest.raises(MaskError, match=f"the exchange that is under way has another {next(iter(changes))}"):
        nodes[1].answer(request._replace(**changes), payload)


def test_an_exchange_that_was_given_up_is_forgotten() -> None:
    """A new exchange takes the place of the old one, whose shares are then gone."""
    exchange, nodes = _play(Stage.REVEAL)
    nodes[1].answer(*_request(1, Request(Stage.KEYS, CLIENTS), exchange="1" * 32))
    with pytest.raises(MaskError, match="has another exchange"):
        nodes[1].answer(*_request(1, exchange.requests()[1]))


def test_nothing_is_answered_before_an_exchange_was_begun() -> None:
    with pytest.raises(MaskError, match="no exchange has been begun"):
        Masking(OPTIONS, Disclosures(), _compute).answer(*_request(1, Request(Stage.REVEAL, CLIENTS)))


@pytest.mark.parametrize("changes", [{"round": 4}, {"client": 4}, {"train": False}, {"gradients": "prime"}], ids=str)
def test_what_is_asked_for_must_be_what_was_agreed_on(changes: dict[str, Any]) -> None:
    exchange, nodes = _play(Stage.INPUT)
    request = exchange.requests()[1]
    with pytest.raises(FrameError, match=f"has another {next(iter(changes))} than the exchange"):
        nodes[1].answer(_request(1, request)[0], request.payload + _ask(1, **changes))


def test_a_message_that_is_not_finite_stays_on_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    exchange, nodes = _play(Stage.INPUT)
    monkeypatch.setattr(
        nodes[1], "_compute", lambda *arguments: _compute(*arguments)._replace(send=[np.array([np.nan])])
    )
    with pytest.raises(MaskError, match="NaN or infinite"):
        nodes[1].answer(*_request(1, exchange.requests()[1]))


@given(st.integers(0, 800), st.binary(max_size=900), st.booleans())
def test_hostile_requests_for_messages_do_no_harm(start: int, data: bytes, insert: bool) -> None:
    """Bytes in place of, or between, those of a sound request: an error of these kinds, or a masked message."""
    exchange, nodes = _play(Stage.INPUT)
    request, payload = _request(1, exchange.requests()[1])
    changed = payload[:start] + data + payload[start if insert else start + len(data) :]
    with contextlib.suppress(MaskError, FrameError):
        assert len(nodes[1].answer(request, changed)) == exchange.reply_bytes
