"""A TCP relay that counts the bytes of connections to a port, as they are at the socket: TLS, HTTP and all."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import NamedTuple

from fedmime.deploy.flower.launcher import LOOPBACK


class Bytes(NamedTuple):
    """What has passed, by direction."""

    up: int
    """From nodes to the server."""
    down: int


class Relay:
    """Passes connections on to a port of this machine.

    Attributes:
        port: the port at which it listens.
    """

    def __init__(self, port: int) -> None:
        self._port, self._lock = port, threading.Lock()
        self._up = self._down = 0
        self._listener = socket.create_server((LOOPBACK, 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def read(self) -> Bytes:
        """What has passed until now."""
        with self._lock:
            return Bytes(self._up, self._down)

    def close(self) -> None:
        """Take no further connections."""
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._join, args=(client,), daemon=True).start()

    def _join(self, client: socket.socket) -> None:
        """Pass on what both ends of a connection send, until both have said all."""
        with client, contextlib.suppress(ConnectionError), socket.create_connection((LOOPBACK, self._port)) as server:
            upwards = threading.Thread(target=self._pass, args=(client, server, True), daemon=True)
            upwards.start()
            self._pass(server, client, False)
            upwards.join()

    def _pass(self, source: socket.socket, target: socket.socket, upwards: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                with self._lock:
                    self._up += len(data) * upwards
                    self._down += len(data) * (not upwards)
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)
