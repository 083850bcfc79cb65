"""The worker: a long-lived process on a client's machine that holds its data and its compiled programs.

Flower starts a new process for every message (`client_app.py`). Importing JAX, opening the data and compiling would
cost several seconds each time, so these processes only pass their message on to the worker. A worker is started with an
order, which says how to build the node; it serves until the process that it belongs to ends, or nobody has asked it
anything for a long time.

Run as a module it reads the order from its standard input, and writes a line when it is ready to serve.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
import logging
import os
import select
import socket
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from fedmime.deploy.flower import channel
from fedmime.deploy.protocol import Node
from fedmime.version import exact

SOCKET, LOG, LOCK = "socket", "worker.log", "lock"
READY = b"ready\n"
SAME, OTHER = b"same", b"other"
_NOTES = ("stamp.json",)  # what a store's readers write beside its data, `fedmime.data.integrity.STAMP`
_PATIENCE = 3600.0  # seconds without a message after which a worker ends
_LOG = logging.getLogger("fedmime.worker")


@dataclasses.dataclass(frozen=True)
class Order:
    """How to build a node: which function to call with which arguments.

    It is written by the client's own processes, never by a server.
    """

    call: str
    """The function that builds the node, as `module:function`."""
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """What it is called with: anything that JSON can hold."""
    path: tuple[str, ...] = ()
    """Directories in which modules are looked for first."""
    run: int | None = None
    """Flower's number of the run that the node is for, if it serves no other: until the next run, data may change."""
    files: tuple[str, ...] = ()
    """Files and directories that the node is made from, its data and its code."""

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Self:
        """The order in a JSON object, which may hold more."""
        return cls(told["call"], told["arguments"], tuple(told["path"]), told["run"], tuple(told["files"]))

    def identity(self) -> str:
        """The digest of the order, of what its files look like now, and of this library's source.

        A worker with another identity has other data, another configuration or older code, and must not answer.
        """
        looks = [[file, *_looks(Path(file))] for file in self.files]
        text = json.dumps([dataclasses.asdict(self), looks, exact()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def build(self) -> Node:
        """The node."""
        sys.path[:0] = self.path
        module, _, function = self.call.partition(":")
        return getattr(importlib.import_module(module), function)(**self.arguments)


def _looks(place: Path) -> list[list[Any]]:
    """What changes when a file, or one in a directory, is written to: its size and times. Contents are not read."""
    found = []
    inside = [Path(path) / name for path, _, names in os.walk(place) for name in names if name not in _NOTES]
    for file in sorted(inside) if place.is_dir() else [place]:
        try:
            state = file.stat()
            found.append([str(file), state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino])
        except OSError:
            found.append([str(file)])
    return found


def main() -> None:
    """Read an order, build the node, and serve it.

    What the node's own code prints goes to the log: the standard output is for one line.
    """
    output = os.dup(1)
    os.dup2(2, 1)
    told = json.loads(sys.stdin.readline())
    directory = Path(told["directory"])
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    threading.Thread(target=_end_with, args=(told["owner"],), daemon=True).start()
    order = Order.of(told)
    identity = order.identity()  # before anything is read: what changes meanwhile makes this worker stale
    node = order.build()
    listener = channel.listen(directory / SOCKET)
    _LOG.info("ready")
    os.write(output, READY)
    os.close(output)
    serve(listener, node, identity)


def serve(listener: socket.socket, node: Node, identity: str, patience: float = _PATIENCE) -> None:
    """Answer one connection after another, until none has come for `patience` seconds."""
    listener.settimeout(patience)
    while True:
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            _LOG.info("nobody has asked for %.0f s", patience)
            return
        try:
            with connection:
                _answer(connection, node, identity)
        except Exception:  # whatever one message has led to, the next one is answered
            _LOG.exception("a message got no reply")


def _answer(connection: socket.socket, node: Node, identity: str) -> None:
    """Compare identities, then turn one request into one reply."""
    connection.settimeout(_PATIENCE)
    channel.peer(connection)
    wanted = channel.receive(connection, len(identity)).decode()
    channel.send(connection, SAME if wanted == identity else OTHER)
    if wanted == identity:
        channel.send(connection, node.answer(channel.receive(connection)))


def _end_with(owner: int) -> None:
    """End this process when another one has ended, even in the middle of a computation."""
    try:
        handle = os.pidfd_open(owner)
    except ProcessLookupError:
        os._exit(0)
    select.select([handle], [], [])
    os._exit(0)


if __name__ == "__main__":
    main()
