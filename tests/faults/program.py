"""The command line as faults meet it: in this process, and in others that can be limited, signalled and killed.

Started as a program, this file is a server that has imported everything: each line it reads is an order for a new
process, forked before JAX starts, which costs a tenth of a new interpreter.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

_FILE_EVENTS = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate")


class Ended(NamedTuple):
    """How a command ended and what it said."""

    code: int
    out: str
    err: str


def said(words: Sequence[object], capsys: pytest.CaptureFixture[str]) -> Ended:
    """Run the command line in this process."""
    from fedmime.cli.main import main

    capsys.readouterr()
    try:
        code = main([str(word) for word in words])
    except SystemExit as end:  # the parser's way
        code = int(end.code or 0)
    return Ended(code, *capsys.readouterr())


@dataclasses.dataclass(frozen=True)
class Order:
    """What a new process is to do.

    Args:
        words: the command line.
        said: the file that takes what it prints.
        largest: bytes that no file may grow beyond.
        dies_at: the file operation in `where` at which it kills itself.
    """

    words: list[str]
    said: str
    largest: int | None = None
    dies_at: int | None = None
    where: str = ""


class Child:
    """A process at work."""

    def __init__(self, pid: int, said: Path, ended: Callable[[], int]) -> None:
        self.pid, self._said, self._ended = pid, said, ended
        self._code: int | None = None

    def wait(self) -> int:
        """Its exit code, negative for a signal."""
        if self._code is None:
            self._code = self._ended()
        return self._code

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal, unless it has ended already."""
        if self._code is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def said(self) -> str:
        """What it has printed."""
        return self._said.read_text(encoding="utf-8")

    def until(self, happened: Callable[[], bool]) -> bool:
        """Wait for something; False if the process ended first."""
        while not happened():
            with contextlib.suppress(FileNotFoundError):
                if Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                    time.sleep(0.001)
                    continue
            return happened()
        return True


class Server:
    """Starts processes, one after another."""

    def __init__(self, folder: Path) -> None:
        cache = {
            "JAX_COMPILATION_CACHE_DIR": str(folder / "programs"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        command = [sys.executable, __file__]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": {**os.environ, **cache}}
        self._process = subprocess.Popen(command, **pipes)
        self._folder, self._count = folder, 0
        self._last: Child | None = None

    def start(self, words: Sequence[object], **limits: Any) -> Child:
        """A new process with this command line."""
        self._end_last()
        self._count += 1
        said = self._folder / f"said-{self._count}"
        order = Order([str(word) for word in words], str(said), **limits)
        assert self._process.stdin
        self._process.stdin.write(json.dumps(dataclasses.asdict(order)) + "\n")
        self._process.stdin.flush()
        self._last = Child(self._answer(), said, self._answer)
        return self._last

    def _end_last(self) -> None:
        """End the process that was started last: a test that failed may have left it behind."""
        if self._last is not None:
            self._last.kill()
            self._last.wait()

    def close(self) -> None:
        """End the server and what it started last."""
        self._end_last()
        self._process.communicate(timeout=60)

    def _answer(self) -> int:
        assert self._process.stdout
        return int(self._process.stdout.readline())


@contextlib.contextmanager
def server(folder: Path) -> Iterator[Server]:
    """A server for as long as it is wanted."""
    found = Server(folder)
    try:
        yield found
    finally:
        found.close()


def _serve() -> None:
    """Import everything, then fork for every order; JAX is not started here."""
    import importlib

    ours = ("fedmime.cli.main", "fedmime.cli.progress", "fedmime.experiments.train", "fedmime.report.html")
    for name in (*ours, "orbax.checkpoint", "sklearn.datasets", "safetensors.numpy", "tensorboardX"):
        importlib.import_module(name)
    for line in sys.stdin:
        order = Order(**json.loads(line))
        pid = os.fork()
        if not pid:
            _obey(order)
        for answer in (pid, lambda pid=pid: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])):
            sys.stdout.write(f"{answer() if callable(answer) else answer}\n")
            sys.stdout.flush()


def _obey(order: Order) -> None:
    """In the new process: run the command line and end with its exit code."""
    from fedmime.cli.main import main

    handle = os.open(order.said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for standard in (1, 2):
        os.dup2(handle, standard)
    if order.largest is not None:
        import jax

        jax.config.update("jax_compilation_cache_dir", None)
        os.environ["FEDMIME_NO_COMPILATION_CACHE"] = "1"  # or the library would choose a folder of its own
        resource.setrlimit(resource.RLIMIT_FSIZE, (order.largest, order.largest))
    if order.dies_at is not None:
        sys.addaudithook(_Fate(order.dies_at, order.where))
    code = 70
    try:
        code = main(order.words)
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # pyright: ignore[reportArgumentType]
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class _Fate:
    """Kills its own process at a file operation in a directory, counted from one."""

    def __init__(self, at: int, where: str) -> None:
        self._left, self._where = at, where

    def __call__(self, event: str, details: tuple[object, ...]) -> None:
        if event in _FILE_EVENTS and str(details[0]).startswith(self._where):
            self._left -= 1
            if not self._left:
                os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    _serve()
