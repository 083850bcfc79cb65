"""A process beside a launcher, run as a script: it starts other processes, and lets none of them outlive the launcher.

Flower's processes start others, some of which leave their group and their parents. The keeper therefore asks the kernel
to become the parent of every descendant whose own parent ends, and finds them all in the end. It ends them when its
input ends, which happens however the launcher ends, and then removes the launcher's temporary directory.

Each line of the input is an order: to start a process, or to end one. Each line of the output tells of a process that
has ended by itself. One that is to be started again is, after a pause that grows; if it always ends at once, it is told
of like the others. The keeper imports nothing but the standard library, and is started in a session of its own, so that
what a terminal sends to the launcher (Ctrl-C) does not reach it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from typing import Any

_SUBREAPER, _DEATH_SIGNAL = 36, 1  # of prctl
_GRACE = 4.0  # seconds that processes have to end
_LOOK = 0.5  # seconds between two looks at them
_AT_ONCE, _TRIES = 10.0, 6  # seconds; so often may a process end within them, one time after another
_PAUSE, _GROWTH = 0.5, 2.0  # seconds before it is started again, and how they grow
FREE_PORT = "{free port}"
"""In a command: a port of the loopback interface that nobody uses when the process is started."""
_LIBC = ctypes.CDLL(None)


class _Again:
    """A process that is started again whenever it ends."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.order, self._begun, self._short, self.due = order, time.monotonic(), 0, 0.0

    def begun(self) -> None:
        """It was started just now."""
        self._begun, self.due = time.monotonic(), float("inf")

    def ended(self) -> bool:
        """It has ended; gives whether it is worth another try."""
        now = time.monotonic()
        self._short = self._short + 1 if now - self._begun < _AT_ONCE else 0
        self.due = now + _PAUSE * _GROWTH ** max(self._short - 1, 0)
        return self._short < _TRIES


class Keeper:
    """The processes that were started, by name."""

    def __init__(self) -> None:
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._again: dict[str, _Again] = {}

    def run(self) -> None:
        """Follow orders until there will be no more."""
        orders = b""
        while True:
            if select.select([0], [], [], _LOOK)[0]:
                piece = os.read(0, 1 << 16)
                if not piece:
                    return
                *lines, orders = (orders + piece).split(b"\n")
                for line in lines:
                    self._follow(json.loads(line))
            self._reap()

    def _follow(self, order: dict[str, Any]) -> None:
        if "end" in order:
            self._again.pop(order["end"], None)
            _end([found] if (found := self._running.pop(order["end"], None)) else [])
            return
        if order["again"]:
            self._again[order["name"]] = _Again(order)
        self._start(order)

    def _start(self, order: dict[str, Any]) -> None:
        if order["name"] in self._again:
            self._again[order["name"]].begun()
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        self._running[order["name"]] = subprocess.Popen(  # noqa: S603 (what the launcher asks for)
            [_free_port() if word == FREE_PORT else word for word in order["command"]],
            env=order["environment"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 (there are no threads here)
        )
        os.close(log)

    def _reap(self) -> None:
        """Tell who has ended or start them again, and let go of descendants that were left to this process."""
        for name, process in list(self._running.items()):
            if process.poll() is not None:
                del self._running[name]
                if name in self._again and self._again[name].ended():
                    continue
                self._again.pop(name, None)
                sys.stdout.write(json.dumps({"ended": name, "code": process.returncode}) + "\n")
                sys.stdout.flush()
        for each in self._again.values():
            if each.due <= time.monotonic():
                self._start(each.order)
        known = {process.pid for process in self._running.values()}
        ours = {process for process, parent in _parents().items() if parent == os.getpid()}
        for left in ours - known:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(left, os.WNOHANG)

    def end(self) -> None:
        """End every descendant."""
        _end(list(self._running.values()))
        while left := _descendants(os.getpid()):
            for found in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(found, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            time.sleep(0.02)


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    """Ask processes to end, and make those do so that take too long."""
    for process in processes:
        process.terminate()
    until = time.monotonic() + _GRACE
    for process in processes:
        try:
            process.wait(max(until - time.monotonic(), 0.01))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _descendants(of: int) -> set[int]:
    """Children of a process, their children, and so on."""
    parents = _parents()
    found: set[int] = set()
    last = {of}
    while last:
        last = {process for process, parent in parents.items() if parent in last}
        found |= last
    return found


def _parents() -> dict[int, int]:
    """The parent of every process of this machine that can be seen."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                found[int(name)] = int(file.read().rpartition(")")[2].split()[1])
    return found


def _free_port() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


def _die_with_parent() -> None:
    _LIBC.prctl(_DEATH_SIGNAL, signal.SIGKILL)


def _stop(*_: object) -> None:
    raise SystemExit


def main() -> None:
    """Keep processes until the input ends, then remove the directories that the arguments name."""
    _LIBC.prctl(_SUBREAPER, 1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _stop)
    keeper = Keeper()
    try:
        keeper.run()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        keeper.end()
        for path in sys.argv[1:]:
            shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    main()
