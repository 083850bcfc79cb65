"""Flower's SuperLink behind a guard: `python -m fedmime.deploy.flower.superlink`, with `flower-superlink`'s options.

The SuperLink of Flower serves three interfaces at one port: nodes fetch and deliver messages (fleet), the operator
registers nodes and starts programs (control), and those programs reach their messages (runtime). Only the first asks
for a key. Whoever reaches the port could register a node, or start a program of their own on the server and on all
clients. It also reads requests of up to two gigabytes into memory before it looks at their signature.

The guard stands before all that. Only processes of its own user on its own machine reach more than the interface of
nodes. Requests to that one are bounded before they are read, closely until Flower has accepted their key, and what
nodes deliver is checked (`deliveries.py`). The launcher asks the guard whether it is there before it does anything
else, because how it is put before the SuperLink depends on Flower's insides.
"""

from __future__ import annotations

import asyncio
import base64
import collections
import ipaddress
import json
import logging
import os
import resource
import sys
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from fedmime.deploy.flower import audit, peers
from fedmime.deploy.flower.deliveries import Deliveries, NotAllowed
from fedmime.deploy.flower.records import PART

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MOST_VARIABLE = "FEDMIME_MOST_MESSAGE"
"""The environment variable with the bytes of the largest message; it is set by whoever starts the SuperLink."""
AUDIT_VARIABLE = "FEDMIME_AUDIT"
"""The environment variable with the file of `audit.py`."""
PROBE = "/fedmime/guard"
"""Where the guard itself answers, with its bounds."""
FLOWER = "1.41."
"""The versions of Flower before which the guard was tried."""
_MOST = 1 << 30
_FLEET = "/v1/fleet/"
_ANNOUNCE, _DELIVER = _FLEET + "push-messages", _FLEET + "push-object"
_BESIDE = 1 << 14  # bytes of a request beside what it carries, and of those that carry nothing
_EACH = 80  # bytes by which a reply's announcement grows with each of its records
_ARRIVING = 120.0  # seconds that a request has to arrive
_SILENT = 20.0  # seconds that a connection has for its first request
_CONNECTIONS, _KEYS = 8192, 1 << 14
_TOO_LARGE = 413
_KEY, _TIME, _SIGNATURE = b"flwr-public-key", b"flwr-timestamp", b"flwr-signature"  # headers of Flower
_AT_A_TIME = 4  # large requests of one key; nodes deliver two records at a time
_UNSIGNED, _NOT_ACTIVATED = 401, (_FLEET + "activate-node", 412)  # how Flower refuses keys
OPENING = (
    "FLWR_INTERNAL_GRPC_CONTROL_API",
    "FLWR_INTERNAL_GRPC_FLEET_API",
    "FORWARDED_ALLOW_IPS",
    "WEB_CONCURRENCY",
)
"""Environment variables that open ports beside the guard, or let requests claim to come from another address."""


class Guard:
    """An ASGI application before another one.

    Args:
        app: the SuperLink.
        most: bytes of the largest message that nodes may send.
        ours: whether the process behind a connection belongs to this user, by both of its ends.
        signed: whether the key that a request names has signed it, by its headers.
    """

    def __init__(
        self,
        app: App,
        most: int = _MOST,
        ours: Callable[[peers.End, peers.End], bool] = peers.same_user,
        signed: Callable[[Mapping[bytes, bytes]], bool] | None = None,
    ) -> None:
        self._app, self._most, self._ours, self._signs = app, most, ours, signed or _is_signed
        self._largest = min(most, PART) + _BESIDE  # record
        self._announced = _BESIDE + _EACH * (most // PART)
        self._deliveries, self._refusals = Deliveries(most), audit.Refusals()
        self._signed: collections.OrderedDict[bytes, None] = collections.OrderedDict()  # keys that Flower has accepted
        self._large: collections.Counter[bytes] = collections.Counter()  # large requests at this moment, by key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or refuse it."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif scope["type"] != "http":
            await self._app(scope, receive, send)
        elif scope["path"].startswith(_FLEET):
            await self._fleet(scope, receive, send)
        elif (why := await self._stranger(scope)) is not None:
            await _say(send, 403, {"detail": why})
        elif scope["path"] == PROBE:
            await _say(send, 200, {"most": self._most})
        else:
            await self._app(scope, receive, send)

    async def _stranger(self, scope: Scope) -> str | None:
        """Why a request is not served that asks for more than nodes may; None for one of this user's processes."""
        client, server = scope.get("client"), scope.get("server")
        if client is None or server is None or not _from_here(client, server):
            return "only nodes are served from other machines"
        if not await asyncio.to_thread(self._ours, tuple(client), tuple(server)):
            return "only nodes are served for other users"
        return None

    async def _fleet(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve or refuse a request of a node."""
        headers = dict(scope["headers"])
        key = headers.get(_KEY, b"")
        if (refused := self._unbounded(scope["path"], headers)) is not None:
            if refused[0] == _TOO_LARGE:
                self._note(scope, key, _TOO_LARGE)
            await _say(send, refused[0], {"detail": refused[1]})
        elif int(headers[b"content-length"]) <= _BESIDE:
            await self._bounded(scope, receive, send, headers)
        elif not await asyncio.to_thread(self._signs, headers):
            await _say(send, _UNSIGNED, {"detail": "a node signs what it delivers"})
        elif self._large[key] >= _AT_A_TIME:
            await _say(send, 503, {"detail": f"a node delivers at most {_AT_A_TIME} records at a time"})
        else:
            self._large[key] += 1
            try:
                await self._bounded(scope, receive, send, headers)
            finally:
                self._large[key] -= 1
                self._large += collections.Counter()  # keeps only those above zero

    async def _bounded(self, scope: Scope, receive: Receive, send: Send, headers: Mapping[bytes, bytes]) -> None:
        """Read a request of a node, which is not too large, and serve it."""
        try:
            async with asyncio.timeout(_ARRIVING):
                body = await _body(receive)
        except TimeoutError:
            await _say(send, 408, {"detail": f"a request has {_ARRIVING:.0f} s to arrive"})
            return
        except ConnectionError:
            return
        try:
            asked = self._deliveries.announce(body) if scope["path"] == _ANNOUNCE else None
            if scope["path"] == _DELIVER:
                self._deliveries.deliver(body)
        except NotAllowed as error:
            await _say(send, 403, {"detail": str(error)})
            return
        deliveries, key = self._deliveries, headers.get(_KEY, b"")
        heard = _Heard(send, None if asked is None else lambda said: deliveries.announced(asked, said))
        try:
            await self._app(scope, _again(body, receive), heard)
        finally:
            if asked is not None:
                deliveries.forget(asked)
            if heard.status == 200:
                self._signed[key] = None
                if len(self._signed) > _KEYS:
                    self._signed.popitem(last=False)
            if heard.status == _UNSIGNED or (scope["path"], heard.status) == _NOT_ACTIVATED:
                if await asyncio.to_thread(self._signs, headers):  # others cannot shut a key out by naming it
                    self._signed.pop(key, None)
                self._note(scope, key, heard.status)

    def _note(self, scope: Scope, key: bytes, status: int) -> None:
        """Write down that a request of a node was refused."""
        address, what = str((scope.get("client") or "?")[0]), scope["path"].removeprefix(_FLEET)
        self._refusals.add(key, address, what[:40], status)

    def _unbounded(self, path: str, headers: dict[bytes, bytes]) -> tuple[int, str] | None:
        """The status with which a request is refused because of its length, and why.

        The web server in front of the guard holds requests to the length that they state.
        """
        stated = headers.get(b"content-length", b"")
        if b"transfer-encoding" in headers or not stated.isdigit() or len(stated) > 18:
            return 411, "a request has to state its length"
        most = self._largest if path == _DELIVER else self._announced
        if int(stated) > most:
            return _TOO_LARGE, f"a request of {int(stated)} bytes is too large, accepted are at most {most}"
        if int(stated) > _BESIDE and headers.get(_KEY, b"") not in self._signed:
            return 401, "a node says who it is before it delivers anything"
        return None


def _is_signed(headers: Mapping[bytes, bytes]) -> bool:
    """Whether the key that a request names has signed its time, as Flower finds out when it has read all of it."""
    from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature

    try:
        key, signature = (base64.b64decode(headers[name], validate=True) for name in (_KEY, _SIGNATURE))
        return verify_signature(bytes_to_public_key(key), headers[_TIME], signature)
    except (KeyError, ValueError, TypeError):
        return False


class _Heard:
    """Passes a response on, and remembers its status.

    What a good one says is told before its receiver has any of it: the last piece may be an empty one that nobody waits
    for.
    """

    def __init__(self, send: Send, told: Callable[[bytes], None] | None) -> None:
        self._send, self._told, self._body, self.status = send, told, b"", 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif self._told is not None and self.status == 200:
            self._body += message.get("body", b"")
            if message.get("more_body", False):
                return
            self._told(self._body)
            message = {"type": "http.response.body", "body": self._body}
        await self._send(message)


def _from_here(client: peers.End, server: peers.End) -> bool:
    """Whether a request comes from this machine: from a loopback address, or from the one that it was sent to."""
    try:
        return ipaddress.ip_address(client[0]).is_loopback or client[0] == server[0]
    except ValueError:
        return False


async def _body(receive: Receive) -> bytes:
    """What a request carries.

    Raises:
        ConnectionError: its sender has left before it was complete.
    """
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionError
        body += message.get("body", b"")
        if not message.get("more_body", False):
            return bytes(body)


def _again(body: bytes, receive: Receive) -> Receive:
    """A request that was read, to be read once more."""
    left = [body]

    async def received() -> Message:
        return {"type": "http.request", "body": left.pop(), "more_body": False} if left else await receive()

    return received


async def _say(send: Send, status: int, what: dict[str, Any]) -> None:
    body = json.dumps(what).encode()
    headers = {b"content-type": b"application/json", b"content-length": b"%d" % len(body), b"connection": b"close"}
    await send({"type": "http.response.start", "status": status, "headers": [*headers.items()]})
    await send({"type": "http.response.body", "body": body})


def _impatient() -> type[Any]:
    """The web server's protocol, which ends connections that ask for nothing."""
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    base: Any = AutoHTTPProtocol

    class Impatient(base):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            asyncio.get_running_loop().call_later(_SILENT, lambda: transport.close() if self.cycle is None else None)

    return Impatient


def _connections() -> int:
    """How many connections there may be at a time: some thousands, if the system permits that many open files."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = 2 * _CONNECTIONS if most == resource.RLIM_INFINITY else min(2 * _CONNECTIONS, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))
    return files // 2


def main() -> None:
    """Run the SuperLink."""
    import uvicorn
    from flwr.supercore.version import package_version
    from flwr.superlink.cli import flower_superlink

    if not package_version.startswith(FLOWER):
        sys.exit(f"superlink: the guard was tried before versions {FLOWER}x of flwr, got {package_version}")
    for name in OPENING:
        os.environ.pop(name, None)
    most, log = int(os.environ.get(MOST_VARIABLE, _MOST)), os.environ.get(AUDIT_VARIABLE)
    audit.LOG.addHandler(audit.written_to(Path(log) if log else None))
    audit.LOG.setLevel(logging.INFO)
    audit.LOG.propagate = False
    serve = uvicorn.run
    quiet = {"access_log": False, "log_level": "error"}  # no line for each request of a stranger; `audit.py` has some
    bounds = {"proxy_headers": False, "limit_concurrency": _connections(), "http": _impatient(), **quiet}
    uvicorn.run = lambda app, **options: serve(Guard(app, most), **(options | bounds))
    flower_superlink()


if __name__ == "__main__":
    main()
