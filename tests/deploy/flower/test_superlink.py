"""The guard before a SuperLink: strangers reach the interface of nodes only, with requests of bounded size."""

import asyncio
import base64
import contextlib
import json
import logging
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from fedmime.deploy.flower import superlink
from fedmime.deploy.flower.records import PART
from fedmime.deploy.flower.superlink import OPENING, PROBE, Guard

HERE, ELSEWHERE, SERVER = ("127.0.0.1", 5), ("10.0.0.7", 5), ("10.0.0.1", 9092)


class Web:
    """A web server with one request. Its body may only be read when the guard is content with what it states."""

    def __init__(self, body: bytes = b"", stall: bool = False) -> None:
        self.pieces = [body[:7], body[7:]]
        self.stall, self.read, self.said = stall, 0, []

    async def receive(self) -> Any:
        self.read += 1
        if self.stall:
            await asyncio.sleep(60)
        if not self.pieces:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": self.pieces.pop(0), "more_body": bool(self.pieces)}

    async def send(self, message: Any) -> None:
        self.said.append(message)

    @property
    def status(self) -> int:
        return self.said[0]["status"]


def asked(guard: Guard, path: str, client: Any, headers: dict[str, str], server: Any = SERVER, **web: Any) -> Web:
    """A request and what became of it."""
    found = Web(**web)
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "path": path, "client": client, "server": server, "headers": pairs}
    asyncio.run(guard(scope, found.receive, found.send))
    return found


def served(guard: Guard, path: str, client: Any, headers: dict[str, str], server: Any = SERVER) -> int:
    """The status of a request's response; 200 where it reached the application."""
    found = asked(guard, path, client, headers, server)
    assert found.status == 200 or not found.read
    return found.status


def guarded(app: Any = None, most: int = 1 << 30, ours: bool = True) -> Guard:
    """A guard on a machine where all processes are ours, or none; requests are signed unless they say otherwise."""
    return Guard(app or _app, most, lambda client, server: ours, lambda headers: b"unsigned" not in headers)


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
    name = path.replace("pull-messages", "get-run")
    assert served(guarded(), name, client, {"content-length": "10"}) == status


@pytest.mark.parametrize(("path", "status"), [("/v1/control/start-run", 403), (PROBE, 403), ("/v1/fleet/get-run", 200)])
def test_other_users_of_the_machine_are_strangers(path: str, status: int) -> None:
    """They could start programs as the user whose SuperLink it is."""
    assert served(guarded(ours=False), path, HERE, {"content-length": "10"}) == status


@pytest.mark.parametrize("path", ["/v1/control/start-run", "/v1/fleet/pull-messages"])
def test_an_address_that_a_request_claims_counts_for_nothing(path: str) -> None:
    claims = {"x-forwarded-for": "127.0.0.1", "forwarded": "for=127.0.0.1", "content-length": "1"}
    assert served(guarded(), path, ELSEWHERE, claims) == (200 if "fleet" in path else 403)


def test_the_guard_answers_a_probe_itself() -> None:
    found = asked(guarded(most=1234), PROBE, HERE, {})
    assert json.loads(found.said[1]["body"]) == {"most": 1234}
    assert served(guarded(), PROBE, ELSEWHERE, {}) == 403


def test_what_was_read_is_passed_on() -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.extend([await receive(), await receive()])
        await send({"type": "http.response.start", "status": 204})

    found = asked(guarded(app), "/v1/fleet/get-run", ELSEWHERE, {"content-length": "10"}, body=b"0123456789")
    assert found.status == 204
    assert seen == [{"type": "http.request", "body": b"0123456789", "more_body": False}, {"type": "http.disconnect"}]


def test_requests_that_do_not_arrive_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(superlink, "_ARRIVING", 0.1)
    found = asked(guarded(), "/v1/fleet/get-run", ELSEWHERE, {"content-length": "10"}, stall=True)
    assert found.status == 408
    gone = Web()
    scope = {"type": "http", "path": "/v1/fleet/x", "headers": [(b"content-length", b"10")], "client": HERE}
    gone.pieces = []
    asyncio.run(guarded()(scope, gone.receive, gone.send))
    assert gone.said == []


def test_a_record_may_follow_as_soon_as_its_reply_was_taken() -> None:
    """The sender has Flower's response before the SuperLink is done with the request."""
    pytest.importorskip("flwr")
    from deploy.flower.test_deliveries import announcement, record, taken

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"].endswith("push-messages"):
            await send({"type": "http.response.start", "status": 200})
            await send({"type": "http.response.body", "body": taken()[:5], "more_body": True})
            await send({"type": "http.response.body", "body": taken()[5:], "more_body": True})
            assert len(web.said) == 1  # nothing of it has left
            await send({"type": "http.response.body", "body": b""})
            assert web.said[1]["body"] == taken()
            seen.append(await pushed("push-object", record("s", 1, 10), Web(b"")))
        else:
            await send({"type": "http.response.start", "status": 200})

    async def pushed(name: str, body: bytes, web: Web) -> int:
        web.pieces = [body]
        headers = [(b"content-length", b"%d" % len(body))]
        scope = {"type": "http", "path": f"/v1/fleet/{name}", "headers": headers, "client": ELSEWHERE}
        await guard(scope, web.receive, web.send)
        return web.status

    seen: list[int] = []
    guard = guarded(app)
    web = Web()
    assert asyncio.run(pushed("push-object", record("s", 1, 10), Web())) == 403
    assert asyncio.run(pushed("push-messages", announcement(), web)) == 200
    assert seen == [200]
    assert asyncio.run(pushed("push-messages", announcement(dst_node_id=5), Web())) == 403


def refusing(status: int) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status})

    return app


@pytest.mark.parametrize(
    ("status", "path", "lines"),
    [(401, "pull-messages", 1), (412, "activate-node", 1), (412, "deactivate-node", 0), (200, "activate-node", 0)],
)
def test_keys_that_are_refused_leave_a_line(
    status: int, path: str, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "fedmime.nodes")
    headers = {"content-length": "10", "flwr-public-key": base64.b64encode(b"what").decode()}
    asked(guarded(refusing(status)), f"/v1/fleet/{path}", ELSEWHERE, headers)
    said = [record.message for record in caplog.records]
    assert said == [f"no key is refused from 10.0.0.7: {path}, status {status}"] * lines


def test_requests_that_are_too_large_leave_a_line(caplog: pytest.LogCaptureFixture) -> None:
    """At the pace of the audit: whoever sends many cannot fill the disk."""
    caplog.set_level(logging.INFO, "fedmime.nodes")
    guard = guarded(most=1000)
    for _ in range(5):
        assert served(guard, "/v1/fleet/push-object", ELSEWHERE, {"content-length": "100000"}) == 413
    assert [record.message for record in caplog.records] == ["no key is refused from 10.0.0.7: push-object, status 413"]


_START = """
import os, uvicorn
from flwr.superlink import cli
from fedmime.deploy.flower import superlink

def run(app, **options):
    names = sorted(name for name in options if name != "http")
    print(options["access_log"], options["log_level"])
    print(type(app).__name__, options["proxy_headers"], options["limit_concurrency"] >= 100, options["host"], names)

uvicorn.run = run
cli.flower_superlink = lambda: uvicorn.run(app=None, host="a", access_log=True)
print(*sorted(set(os.environ) & set(superlink.OPENING)))
superlink.main()
print(*sorted(set(os.environ) & set(superlink.OPENING)))
"""


def test_how_the_guard_is_put_before_the_superlink() -> None:
    """No address that a request claims is believed, and no variable opens another port."""
    pytest.importorskip("flwr")
    environment = {**os.environ, **dict.fromkeys(OPENING, "1")}
    command = [sys.executable, "-c", _START]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.splitlines() == [
        " ".join(sorted(OPENING)),
        "False error",
        "Guard False True a ['access_log', 'host', 'limit_concurrency', 'log_level', 'proxy_headers']",
        "",
    ], done.stderr


def test_other_versions_of_flower_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    version = pytest.importorskip("flwr.supercore.version")
    monkeypatch.setattr(version, "package_version", "1.42.0")
    with pytest.raises(SystemExit, match=r"versions 1\.41\.x of flwr, got 1\.42\.0"):
        superlink.main()


def test_connections_that_ask_for_nothing_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    uvicorn = pytest.importorskip("uvicorn")
    monkeypatch.setattr(superlink, "_SILENT", 0.3)

    async def body(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    async def play() -> list[bytes]:
        config = uvicorn.Config(body, port=0, lifespan="off", ws="none", log_config=None, http=superlink._impatient())
        server = uvicorn.Server(config)
        running = asyncio.create_task(server._serve())
        while not server.started:
            assert not running.done(), running
            await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        said = []
        for request in (b"", b"GET / HT", b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request)
            said.append(await asyncio.wait_for(reader.read(), 5))
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        server.should_exit = True
        await running
        return said

    nothing, half, whole = asyncio.run(play())
    assert nothing == half == b""
    assert whole.endswith(b"ok")


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
@pytest.mark.parametrize("name", ["get-run", "pull-object", "pull-messages"])
def test_requests_state_their_length_and_keep_to_it(name: str, headers: dict[str, str], status: int) -> None:
    assert served(guarded(), f"/v1/fleet/{name}", ELSEWHERE, headers) == status


def test_the_bound_follows_the_largest_message() -> None:
    for most, size, status in [(1000, 100_000, 413), (1000, 1000, 403), (1 << 30, PART, 403), (1 << 30, 2 * PART, 413)]:
        guard = guarded(most=most)
        assert served(guard, "/v1/fleet/activate-node", HERE, {"content-length": "10", "flwr-public-key": "k"}) == 200
        headers = {"content-length": str(size), "flwr-public-key": "k"}
        found = asked(guard, "/v1/fleet/push-object", HERE, headers)
        assert found.status == status  # what is not too large is read, and belongs to no reply


def test_little_is_read_before_a_key_was_accepted() -> None:
    """Flower reads a request into memory before it looks at the signature. Strangers may send many at a time."""
    statuses = [200]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": statuses[0]})

    guard, path = guarded(app), "/v1/fleet/push-object"
    large = {"content-length": str(PART), "flwr-public-key": "k"}
    small = large | {"content-length": "10"}
    assert served(guard, path, ELSEWHERE, large) == 401
    assert served(guard, "/v1/fleet/activate-node", ELSEWHERE, small) == 200
    assert asked(guard, path, ELSEWHERE, large).status == 403  # it was read
    assert served(guard, path, ELSEWHERE, large | {"flwr-public-key": "other"}) == 401
    assert served(guard, path, ELSEWHERE, large | {"unsigned": ""}) == 401
    statuses[0] = 401
    assert asked(guard, "/v1/fleet/pull-messages", ELSEWHERE, small | {"unsigned": ""}).status == 401
    assert asked(guard, path, ELSEWHERE, large).status == 403  # whoever knows a key cannot shut it out
    assert asked(guard, "/v1/fleet/pull-messages", ELSEWHERE, small).status == 401  # the key is revoked
    assert served(guard, path, ELSEWHERE, large) == 401


def test_a_key_has_few_large_requests_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them is read into memory, and there may be thousands of connections."""
    monkeypatch.setattr(superlink, "_ARRIVING", 0.3)
    guard, path = guarded(), "/v1/fleet/push-object"
    for key in ("k", "other"):
        accepted = {"content-length": "10", "flwr-public-key": key}
        assert served(guard, "/v1/fleet/activate-node", ELSEWHERE, accepted) == 200

    async def at_one_time(*keys: str) -> list[int]:
        made = {Web(stall=True): key for key in keys}
        scope = {"type": "http", "path": path, "client": ELSEWHERE, "server": SERVER}
        length = (b"content-length", b"%d" % PART)
        own = {web: scope | {"headers": [length, (b"flwr-public-key", key.encode())]} for web, key in made.items()}
        await asyncio.gather(*(guard(own[web], web.receive, web.send) for web in made))
        return sorted(web.status for web in made)

    assert asyncio.run(at_one_time(*["k"] * 6)) == [408] * 4 + [503] * 2
    assert asyncio.run(at_one_time(*["k", "other"] * 4)) == [408] * 8
    assert not guard._large


def test_signatures_are_those_of_flower() -> None:
    pytest.importorskip("flwr")
    import httpx
    from cryptography.hazmat.primitives.asymmetric import ec
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    key, other = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    signed: list[dict[bytes, bytes]] = []
    for private in (key, other):
        found: Any = NodeAuthHttpInterceptor(private, key.public_key())
        request = httpx.Request("POST", "https://a/v1/fleet/push-object")
        found.intercept(SimpleNamespace(request=request), lambda _: None)
        signed.append(dict(request.headers.raw))
    one, forged = ({name.lower(): value for name, value in each.items()} for each in signed)
    assert superlink._is_signed(one)
    assert not superlink._is_signed(forged)
    assert not superlink._is_signed(one | {b"flwr-timestamp": b"2030-01-01T00:00:00+00:00"})
    assert not superlink._is_signed(one | {b"flwr-public-key": b"?"})
    assert not superlink._is_signed({name: value for name, value in one.items() if name != b"flwr-signature"})


def test_a_reply_announces_no_more_records_than_the_largest_message_has() -> None:
    """An announcement names each record by a digest of 64 digits. So what a reply occupies is bounded."""
    most = 100 * PART
    guard, path = guarded(most=most), "/v1/fleet/push-messages"
    assert asked(guard, path, ELSEWHERE, {"content-length": str(72 * 110)}).status == 403
    assert asked(guard, path, ELSEWHERE, {"content-length": str(72 * 1000)}).status == 413


def test_web_sockets_are_closed() -> None:
    said: list[Any] = []

    async def send(message: Any) -> None:
        said.append(message)

    asyncio.run(guarded()({"type": "websocket", "path": "/"}, Web().receive, send))
    assert said == [{"type": "websocket.close", "code": 1008}]
