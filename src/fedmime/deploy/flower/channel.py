"""Byte strings between processes of one user on one machine, through a Unix socket in a private directory.

A message is its length and its bytes. The receiver has a bound, and memory grows with what has arrived, never with what
was announced. Both ends ask the kernel who the other one is: a process of another user is refused, whatever the
permissions of the socket's path have become.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MOST = 1 << 31
"""The largest message that either end accepts, in bytes."""
_LENGTH = struct.Struct("<Q")
_CREDENTIALS = struct.Struct("3i")  # process, user and group, as Linux tells them
_PIECE = 1 << 20


class Peer(NamedTuple):
    """The process at the other end of a connection."""

    process: int
    user: int


def peer(connection: socket.socket) -> Peer:
    """Who is at the other end, as the kernel knows it.

    Raises:
        PermissionError: it is a process of another user.
    """
    told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    found = Peer(*_CREDENTIALS.unpack(told)[:2])
    if found.user != os.geteuid():
        raise PermissionError(f"process {found.process} of user {found.user} has no business here")
    return found


def listen(path: Path) -> socket.socket:
    """Wait for connections at a path, which is replaced if it exists; its directory has to be private."""
    path.unlink(missing_ok=True)
    found = socket.socket(socket.AF_UNIX)
    with _short(path) as name:
        found.bind(name)
    os.chmod(path, 0o600)
    found.listen()
    return found


def connect(path: Path, seconds: float) -> socket.socket:
    """Connect to a process that listens at a path. Every later wait ends after `seconds` with a `TimeoutError`."""
    found = socket.socket(socket.AF_UNIX)
    try:
        found.settimeout(seconds)
        with _short(path) as name:
            found.connect(name)
        peer(found)
    except BaseException:
        found.close()
        raise
    return found


def send(connection: socket.socket, data: bytes) -> None:
    """Send one message."""
    connection.sendall(_LENGTH.pack(len(data)))
    connection.sendall(data)


def receive(connection: socket.socket, most: int = MOST) -> bytes:
    """Receive one message.

    Raises:
        ConnectionError: the other end has closed the connection before the message was complete.
        ValueError: a message of more than `most` bytes was announced.
    """
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    if length > most:
        raise ValueError(f"a message of {length} bytes was announced, accepted are at most {most}")
    return _exactly(connection, length)


def _exactly(connection: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        piece = connection.recv(min(_PIECE, length - len(data)))
        if not piece:
            raise ConnectionError("the other process has closed the connection")
        data += piece
    return bytes(data)


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """A name of at most 107 bytes for a path of any length, which is all that the address of a Unix socket holds."""
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
