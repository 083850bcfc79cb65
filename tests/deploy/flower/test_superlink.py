"""The guard before a SuperLink: other machines reach the interface of nodes only, with requests of bounded size."""

import asyncio
from typing import Any

import pytest

from fedmime.deploy.flower.records import PART
from fedmime.deploy.flower.superlink import Guard

HERE, ELSEWHERE, SERVER = ("127.0.0.1", 5), ("10.0.0.7", 5), ("10.0.0.1", 9092)


def served(guard: Guard, path: str, client: Any, headers: dict[str, str], server: Any = SERVER) -> int:
    """The status of a request's response; 200 where it reached the application."""
    statuses: list[int] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "path": path, "client": client, "server": server, "headers": pairs}
    asyncio.run(guard(scope, _nothing, send))
    return statuses[0]


async def _nothing() -> Any:
    raise AssertionError("nobody may read a request's body before it is served")


async def _app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200})


@pytest.mark.parametrize(
    ("path", "client", "status"),
    [
        ("/v1/fleet/pull-messages", ELSEWHERE, 200),
        ("/v1/fleet/pull-messages", HERE, 200),
        ("/v1/control/start-run", ELSEWHERE, 403),
        ("/v1/control/register-node", ELSEWHERE, 403),
        ("/v1/runtime/acquire-task", ELSEWHERE, 403),
        ("/v1/fleet", ELSEWHERE, 403),
        ("/V1/FLEET/pull-messages", ELSEWHERE, 403),
        ("/docs", ELSEWHERE, 403),
        ("/v1/control/start-run", HERE, 200),
        ("/v1/control/start-run", ("::1", 5), 200),
        ("/v1/control/start-run", (SERVER[0], 5), 200),
        ("/v1/control/start-run", None, 403),
        ("/v1/control/start-run", ("not an address", 5), 403),
    ],
)
def test_who_reaches_what(path: str, client: Any, status: int) -> None:
    assert served(Guard(_app), path, client, {"content-length": "10"}) == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 411),
        ({"content-length": "-1"}, 411),
        ({"content-length": "1e3"}, 411),
        ({"content-length": "9" * 19}, 411),
        ({"content-length": "10", "transfer-encoding": "chunked"}, 411),
        ({"content-length": "10"}, 200),
        ({"content-length": str(2 * PART)}, 413),
        ({"content-length": "9" * 18}, 413),
    ],
)
@pytest.mark.parametrize("name", ["push-object", "push-messages", "pull-messages"])
def test_requests_state_their_length_and_keep_to_it(name: str, headers: dict[str, str], status: int) -> None:
    assert served(Guard(_app), f"/v1/fleet/{name}", ELSEWHERE, headers) == status


def test_the_bound_follows_the_largest_message() -> None:
    for most, size, status in [(1000, 100_000, 413), (1000, 1000, 200), (1 << 30, PART, 200), (1 << 30, 2 * PART, 413)]:
        assert served(Guard(_app, most), "/v1/fleet/push-object", HERE, {"content-length": str(size)}) == status


def test_a_reply_announces_no_more_records_than_the_largest_message_has() -> None:
    """An announcement names each record by a digest of 64 digits. So what a reply occupies is bounded."""
    most = 100 * PART
    guard, path = Guard(_app, most), "/v1/fleet/push-messages"
    assert served(guard, path, ELSEWHERE, {"content-length": str(72 * 110)}) == 200
    assert served(guard, path, ELSEWHERE, {"content-length": str(72 * 1000)}) == 413


def test_web_sockets_are_closed() -> None:
    said: list[Any] = []

    async def send(message: Any) -> None:
        said.append(message)

    asyncio.run(Guard(_app)({"type": "websocket", "path": "/"}, _nothing, send))
    assert said == [{"type": "websocket.close", "code": 1008}]
