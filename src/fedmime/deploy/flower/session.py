"""The conversation between a launcher and its ServerApp, which Flower starts as a process of its own.

The launcher listens at a Unix socket, whose path is in the run's configuration. The ServerApp connects, is told what to
do, and tells how it goes: a message for every round, one at the end. The launcher says when to stop. A launcher that
is gone is a reason to stop, too.
"""

from __future__ import annotations

import json
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from fedmime import errors
from fedmime.deploy.flower import channel
from fedmime.errors import ClusterError, FedmimeError

if TYPE_CHECKING:
    from fedmime.engine import Info

_PATIENCE = 60.0  # seconds for a message that has begun
_PAUSE = 0.3
_MOST = 1 << 24


class Session:
    """The launcher's end.

    Args:
        path: of the socket, in a private directory.
        plan: what the ServerApp is told.
    """

    def __init__(self, path: Path, plan: Mapping[str, Any]) -> None:
        self._plan, self._listener = plan, channel.listen(path)
        self._connection: socket.socket | None = None

    def events(self, seconds: float, alive: Callable[[], None]) -> Iterator[dict[str, Any] | None]:
        """What the ServerApp tells, as it comes, until it has ended well; None several times a second in between.

        Args:
            seconds: the longest wait for the ServerApp to begin.
            alive: raises an error if there is nothing to wait for any more.

        Raises:
            FedmimeError: the error with which the ServerApp has ended, of the same kind.
        """
        end = time.monotonic() + seconds
        while True:
            waiting = self._connection or self._listener
            if not select.select([waiting], [], [], _PAUSE)[0]:
                alive()
                if self._connection is None and time.monotonic() > end:
                    raise ClusterError(f"flower: the ServerApp has not begun after {seconds:.0f} s")
                yield None
            elif self._connection is None:
                self._accept()
            else:
                told = _receive(self._connection)
                if told is None:
                    raise ClusterError("flower: the ServerApp has ended suddenly; what was saved last is whole")
                if "error" in told:
                    raise _error(told)
                if "done" in told:
                    return
                yield told

    def stop(self, number: int) -> bool:
        """Ask the ServerApp to end after this round, because of a signal; False if it has not begun yet."""
        if self._connection is None:
            return False
        channel.send(self._connection, json.dumps({"stop": number}).encode())
        return True

    def close(self) -> None:
        """End the conversation."""
        self._listener.close()
        if self._connection is not None:
            self._connection.close()

    def _accept(self) -> None:
        self._connection, _ = self._listener.accept()
        self._connection.settimeout(_PATIENCE)
        channel.peer(self._connection)
        channel.send(self._connection, json.dumps(self._plan).encode())


class Report:
    """The ServerApp's end, a context: an error in it is told to the launcher, and so is that there was none."""

    def __init__(self, path: Path) -> None:
        self._connection = channel.connect(path, _PATIENCE)
        self.plan: dict[str, Any] = json.loads(channel.receive(self._connection, _MOST))
        self._stopped: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._connection:
            if error is None:
                self.tell({"done": True})
            elif isinstance(error, FedmimeError):
                self.tell({"error": str(error), "kind": type(error).__name__, "signal": self._stopped})
            else:
                self.tell({"error": f"{type(error).__name__}: {error}", "kind": "FedmimeError"})

    def tell(self, what: Mapping[str, Any]) -> None:
        """Tell the launcher something."""
        channel.send(self._connection, json.dumps(what).encode())

    def on_round(self, info: Info, measured: Mapping[str, float]) -> None:
        """Tell of a finished round what progress is shown of."""
        self.tell({"round": info.round, "loss": info.loss, "epsilon": info.epsilon, "measured": dict(measured)})

    def stop(self) -> int | None:
        """The signal for which the launcher wants the run to end, if it does."""
        if self._stopped is None and select.select([self._connection], [], [], 0)[0]:
            told = _receive(self._connection)
            self._stopped = int(signal.SIGTERM) if told is None else told["stop"]
        return self._stopped


def _receive(connection: socket.socket) -> dict[str, Any] | None:
    """A message; None where there will be no more."""
    try:
        return json.loads(channel.receive(connection, _MOST))
    except ConnectionError:
        return None


def _error(told: Mapping[str, Any]) -> FedmimeError:
    """The error that the other process has ended with."""
    kind = getattr(errors, told["kind"], FedmimeError)
    if kind is errors.Stopped:
        return errors.Stopped(told["error"], told["signal"] or signal.SIGTERM)
    return kind(told["error"])
