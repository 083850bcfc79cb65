"""Ray itself: started on this machine, or joined. A process has at most one connection to Ray, which runs share.

What Ray runs is code, so whoever reaches it can run anything. A Ray that is started here listens on the loopback
interface alone, and every message carries a token. A cluster is joined only with a token.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import json
import logging
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedmime.engine.backends.ray import head
from fedmime.errors import ClusterError, ConfigError

MISSING = "the Ray back end is an extra: pip install 'fedmime[ray]'"
_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # 0: Ray takes 127.0.0.1 for its address, as it does on a Mac
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",  # errors are looked at when a round asks for its answers
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
_START = 120.0  # seconds that a Ray of our own has to start
_PATIENCE = 30.0  # seconds that it has to end


def check(address: str | None) -> None:
    """Refuse what cannot work, before anything starts."""
    if importlib.util.find_spec("ray") is None:
        raise ConfigError(MISSING)
    if address is None:
        return
    words = f"ray: joining {address!r} needs the cluster's token, without which anybody on the network can run code"
    how = "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH, there and here (docs/cluster.md)"
    if os.environ.get("RAY_AUTH_MODE", "token").lower() != "token" or not _has_token():
        raise ConfigError(f"{words}; {how}")


def _has_token() -> bool:
    """Whether a token is where Ray looks for it. That of this process' own Ray does not count."""
    if token := os.environ.get("RAY_AUTH_TOKEN"):
        return token != _own_token()
    file = os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token"
    return Path(file).is_file()


@functools.cache
def _own_token() -> str:
    """The token of all Rays that this process starts; Ray reads it once a process."""
    return secrets.token_hex(32)


class Cluster:
    """The connection of this process to Ray."""

    def __init__(self) -> None:
        self._users, self._address, self._ours = 0, "", False
        self._head: tuple[str, int] = "", 0
        self._beside: subprocess.Popen[str] | None = None  # the process of `head.py`

    def take(self, address: str | None) -> None:
        """Use Ray; it is started or joined by the first user."""
        import ray

        if self._users and (address or "") != self._address:
            raise ConfigError(f"ray: this process uses {self._address or 'a Ray of its own'!r}, not also {address!r}")
        if not self._users:
            self._address, self._ours = address or "", not ray.is_initialized()
            try:
                if self._ours:
                    self._connect(address)
                _check_token()
                host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
                self._head = host, int(port)
                if not (self._ours or self.alive()):  # the process was connected before, and cannot end that: `_end`
                    raise ClusterError("ray: the head that this process was connected to is lost; start a new process")
            except BaseException:
                self._end()
                raise
        self._users += 1

    def release(self) -> None:
        """Use it no longer. The last user ends what this process has started."""
        self._users -= 1
        if not self._users:
            self._end()

    def alive(self) -> bool:
        """Whether the head of the cluster answers."""
        return _answers(self._head) is None

    def _connect(self, address: str | None) -> None:
        """Join a cluster, or one that is started for it; quietly."""
        if address is not None:
            host, _, port = address.rpartition(":")
            if error := _answers((host, int(port))):  # Ray would take minutes to say it, in many lines
                raise ClusterError(f"ray: {address!r} cannot be joined: {error}")
        os.environ.update(_QUIET | {"RAY_AUTH_MODE": "token"})
        if address is None:
            os.environ.update({"RAY_AUTH_TOKEN": _own_token(), _LOOPBACK: "0"})
        import ray
        from ray._private import ray_constants, worker
        from ray._raylet import Config  # pyright: ignore[reportAttributeAccessIssue]
        from ray.exceptions import RayError

        Config.initialize("")  # it may have read the environment before it was set
        if address is not None and not _admits(address):
            raise ConfigError(f"ray: {address!r} refuses the token; take the one of the cluster (docs/cluster.md)")
        ray_constants.ENABLE_RAY_CLUSTER = address is not None and not address.startswith(("127.", "localhost:"))
        worker.print_to_stdstream = lambda *_, **__: None  # the raylet's essays about dead workers
        self._beside, told = _started("start" if address is None else "watch")
        if "error" in told:
            raise ClusterError(f"ray: a local Ray does not start: {told['error']}")
        where = told.get("address", address)
        try:
            with _signals_kept():
                ray.init(where, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError, RayError) as error:
            first = str(error).strip().partition("\n")[0]
            raise ClusterError(f"ray: {where!r} cannot be joined: {first}") from error

    def _end(self) -> None:
        import ray
        from ray._private import worker

        beside, self._beside = self._beside, None
        if self._ours and self._head[1] and not self.alive():
            atexit.unregister(worker.shutdown)  # it would wait for the head, and then end the process
        elif self._ours:
            with contextlib.suppress(Exception):  # it must not hide the error that made it necessary
                ray.shutdown()
        self._head = "", 0
        if beside is not None:
            _said_farewell(beside)
            with contextlib.suppress(subprocess.TimeoutExpired):
                beside.communicate(timeout=_PATIENCE)


CLUSTER = Cluster()


def _answers(head: tuple[str, int]) -> str | None:
    """Why nobody answers at an address; None if somebody does."""
    try:
        with socket.create_connection(head, timeout=2):
            return None
    except OSError as error:
        return error.strerror or str(error)


def _admits(address: str) -> bool:
    """Whether a cluster takes the token of this process. Ray would ask for 20 seconds, and not say what was wrong."""
    from ray._raylet import GcsClient  # pyright: ignore[reportAttributeAccessIssue]
    from ray.exceptions import AuthenticationError

    with _silence():
        try:
            GcsClient(address=address)
        except AuthenticationError:
            return False
        except Exception:  # whatever else is wrong shows when the cluster is joined
            return True
    return True


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Nobody has to read what Ray's libraries write to the error output meanwhile."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _check_token() -> None:
    from ray._private.authentication.authentication_utils import is_token_auth_enabled

    if not is_token_auth_enabled():
        raise ConfigError("ray: this process has started Ray without a token; set RAY_AUTH_MODE=token before")


def _started(what: str) -> tuple[subprocess.Popen[str], dict[str, str]]:
    """The process of `head.py`, and what it says: the address of a Ray that it has started, or an error.

    It is in a session of its own, so that what the terminal sends to the driver (Ctrl-C) does not reach Ray, and so
    that one which says nothing can be ended with all that it has started.
    """
    command = [sys.executable, "-P", head.__file__, what]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen(command, **pipes, text=True, start_new_session=True)  # noqa: S603
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], _START)[0]:
        os.killpg(process.pid, signal.SIGKILL)
        return process, {"error": f"it has not answered within {_START:g} seconds"}
    return process, json.loads(process.stdout.readline() or '{"error": "it has ended without a word"}')


def _said_farewell(process: subprocess.Popen[str]) -> None:
    """Tell it that the driver has ended its use of Ray itself."""
    assert process.stdin is not None
    with contextlib.suppress(OSError, ValueError):
        process.stdin.write(head.FAREWELL)
        process.stdin.flush()


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Ray replaces what the process does on SIGTERM; the command line needs its own, which saves the run."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
