"""Flower's SuperLink behind a guard: `python -m fedmime.deploy.flower.superlink`, with `flower-superlink`'s options.

The SuperLink of Flower serves three interfaces at one port: nodes fetch and deliver messages (fleet), the operator
registers nodes and starts programs (control), and those programs reach their messages (runtime). Only the first asks
for a key. Whoever reaches the port could register a node, or start a program of their own on the server and on all
clients. It also reads requests of up to two gigabytes into memory before it looks at their signature.

The guard stands before all that. It lets other machines reach the interface of nodes only, and bounds every request to
it. A reply is announced by a request that lists its records, and each record comes in a request of its own. Bounding
both bounds what one reply can occupy.
"""

from __future__ import annotations

import ipaddress
import json
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from fedmime.deploy.flower.records import PART

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MOST_VARIABLE = "FEDMIME_MOST_MESSAGE"
"""The environment variable with the bytes of the largest message; it is set by whoever starts the SuperLink."""
_MOST = 1 << 30
_FLEET = "/v1/fleet/"
_DELIVER = _FLEET + "push-object"
_BESIDE = 1 << 14  # bytes of a request beside what it carries, and of those that carry nothing
_EACH = 80  # bytes by which a reply's announcement grows with each of its records


class Guard:
    """An ASGI application before another one.

    Args:
        app: the SuperLink.
        most: bytes of the largest message that nodes may send.
    """

    def __init__(self, app: App, most: int = _MOST) -> None:
        self._app = app
        self._largest = min(most, PART) + _BESIDE  # record
        self._announced = _BESIDE + _EACH * (most // PART)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or refuse it."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif scope["type"] == "http" and (refused := self._refused(scope)) is not None:
            await _refuse(send, *refused)
        else:
            await self._app(scope, receive, send)

    def _refused(self, scope: Scope) -> tuple[int, str] | None:
        """The status with which a request is refused, and why; None for one that is served.

        The web server in front of the guard holds requests to the length that they state.
        """
        if not scope["path"].startswith(_FLEET):
            return None if _from_here(scope) else (403, "only nodes are served from other machines")
        headers = dict(scope["headers"])
        stated = headers.get(b"content-length", b"")
        if b"transfer-encoding" in headers or not stated.isdigit() or len(stated) > 18:
            return 411, "a request has to state its length"
        most = self._largest if scope["path"] == _DELIVER else self._announced
        if int(stated) > most:
            return 413, f"a request of {int(stated)} bytes is too large, accepted are at most {most}"
        return None


def _from_here(scope: Scope) -> bool:
    """Whether a request comes from this machine: from a loopback address, or from the one that it was sent to."""
    client, server = scope.get("client"), scope.get("server")
    if client is None or server is None:
        return False
    try:
        return ipaddress.ip_address(client[0]).is_loopback or client[0] == server[0]
    except ValueError:
        return False


async def _refuse(send: Send, status: int, why: str) -> None:
    body = json.dumps({"detail": why}).encode()
    headers = {b"content-type": b"application/json", b"content-length": b"%d" % len(body), b"connection": b"close"}
    await send({"type": "http.response.start", "status": status, "headers": [*headers.items()]})
    await send({"type": "http.response.body", "body": body})


def main() -> None:
    """Run the SuperLink."""
    from flwr.superlink import main as flower
    from flwr.superlink.cli import flower_superlink

    create = flower.create_app
    most = int(os.environ.get(MOST_VARIABLE, _MOST))
    flower.create_app = lambda *args: Guard(create(*args), most)  # pyright: ignore[reportAttributeAccessIssue]
    flower_superlink()


if __name__ == "__main__":
    main()
