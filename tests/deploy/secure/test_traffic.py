"""The bytes that a secure run reports are those that pass through its transport."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("flwr")

from deploy.fleets import MIME, Meddling, deploy, frame, nodes
from deploy.secure.runs import ALL, CLIPPED, SECURE
from engine.setting import a, o
from fedmime.deploy.messages import Mask, is_a
from fedmime.deploy.protocol import unpack
from fedmime.deploy.secure.primitives import SEALED_BYTES
from fedmime.deploy.transport import Failure


def _payload(request: bytes) -> int:
    """Bytes of keys, shares and arrays, without headers."""
    found = frame(request)
    if found.fields["stage"] != "input":
        return len(found.payload)
    letters = (len(found.fields["clients"]) - 1) * SEALED_BYTES
    return letters + len(unpack(found.payload[letters:], 1 << 30).payload)


@pytest.mark.parametrize(
    "algorithm",
    [
        a.fedavg(0.1),
        MIME,
        a.mime_lite(o.adam(0.8, 0.9, eps=0.1), 0.1),
        a.feddyn(0.1, 0.5),
        a.mime_mvr(0.1, 0.6),
        a.server_only(o.momentum(0.6), 0.1),
    ],
    ids=lambda algorithm: type(algorithm).__name__,
)
def test_the_history_counts_what_is_sent(algorithm: Any) -> None:
    transport = Meddling(nodes(algorithm, CLIPPED, secure=SECURE))
    run = deploy(algorithm, CLIPPED, transport, 2, secure=SECURE, **ALL)
    asked = [request for _, request in transport.requests if is_a(frame(request), Mask)]
    answered = [frame(reply) for _, reply in transport.replies if not isinstance(reply, Failure)]
    assert run.history["bytes_down"].sum() == sum(map(_payload, asked))
    # of the last stage, the server waits for no more replies than it needs: four of five
    revealed = sum(len(one.payload) for one in answered if one.kind == "masked")
    missing = run.history["bytes_up"].sum() - revealed
    exchanges = len([1 for request in asked if frame(request).fields["stage"] == "keys"]) // 5
    assert missing == exchanges * 5 * 36
