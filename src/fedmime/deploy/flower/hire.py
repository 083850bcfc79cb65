"""Finding the worker of a node, or starting one: what a short-lived process does with a message that it was handed.

A node's directory holds its worker's socket, its log and a lock. Whoever has the lock may start a worker, so there is
never more than one. A worker whose identity is not the one that is asked for is stale: its data, its configuration or
its code are not those of this message. It is ended, and a new one is started. So is one that does not answer in time,
since the next message should not wait for it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from filelock import FileLock, Timeout

from fedmime.deploy.flower import channel
from fedmime.deploy.flower.worker import LOCK, LOG, READY, SAME, SOCKET, Order
from fedmime.files import private_directory

_GRACE = 5.0  # seconds that a worker has to end


class WorkerFailed(RuntimeError):
    """A worker that could not be started, has ended, or was too slow. Flower tells the server these words."""


def ask(order: Order, directory: Path, request: bytes, deadline: float, owner: int) -> bytes:
    """A worker's reply to a request.

    Args:
        order: the node that has to answer.
        directory: the node's own; it is created if it does not exist, and must be private.
        request: the message.
        deadline: seconds after which there is no reply.
        owner: the process with which a worker that has to be started ends.

    Raises:
        WorkerFailed: there is no reply, and will be none.
    """
    end = time.monotonic() + deadline
    private_directory(directory)
    try:
        with FileLock(directory / LOCK, deadline, mode=0o600):
            connection = _known(order, directory, end) or _started(order, directory, end, owner)
    except (Timeout, TimeoutError):
        raise WorkerFailed("the worker is still busy with another message, or being started by one") from None
    with connection:
        try:
            connection.settimeout(_left(end))
            channel.send(connection, request)
            return channel.receive(connection)
        except TimeoutError:
            _end(channel.peer(connection).process)
            raise WorkerFailed(f"the worker has not answered in {deadline:.0f} s and was ended") from None
        except ConnectionError:
            raise WorkerFailed("the worker has ended or dropped the message; its log on the client tells why") from None


def _known(order: Order, directory: Path, end: float) -> socket.socket | None:
    """A connection to the worker that is there, if it is the right one; a wrong one is ended."""
    try:
        connection = channel.connect(directory / SOCKET, _left(end))
    except (FileNotFoundError, ConnectionError):
        return None
    try:
        channel.send(connection, order.identity().encode())
        if channel.receive(connection, len(SAME) + 1) == SAME:
            return connection
        _end(channel.peer(connection).process)
    except TimeoutError:  # it hangs
        _end(channel.peer(connection).process)
    except ConnectionError:  # it has just ended by itself
        pass
    connection.close()
    return None


def _started(order: Order, directory: Path, end: float, owner: int) -> socket.socket:
    """A connection to a new worker."""
    log = os.open(directory / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    command = [sys.executable, "-P", "-m", "fedmime.deploy.flower.worker"]
    try:
        worker = subprocess.Popen(  # noqa: S603 (our own module)
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True
        )
    finally:
        os.close(log)
    assert worker.stdin is not None
    assert worker.stdout is not None
    told = dataclasses.asdict(order) | {"directory": str(directory.absolute()), "owner": owner}
    with contextlib.suppress(BrokenPipeError):
        worker.stdin.write(json.dumps(told).encode() + b"\n")
        worker.stdin.close()
    with worker.stdout as told_back:
        ready = select.select([told_back], [], [], _left(end))[0] and told_back.readline() == READY
    connection = _known(order, directory, end) if ready else None
    if connection is None:
        _end(worker.pid)
        worker.wait(_GRACE)
        raise WorkerFailed("the worker does not start; its log on the client tells why")
    worker.returncode = 0  # it is meant to outlive this process, which therefore does not wait for it
    return connection


def _end(process: int) -> None:
    """End a process, if it has not ended by itself: first it is asked to, then it is made to."""
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(process)
        try:
            for number in (signal.SIGTERM, signal.SIGKILL):
                signal.pidfd_send_signal(handle, number)
                if select.select([handle], [], [], _GRACE)[0]:
                    return
        finally:
            os.close(handle)


def _left(end: float) -> float:
    """Seconds until a moment, at least a few."""
    return max(end - time.monotonic(), 0.05)
