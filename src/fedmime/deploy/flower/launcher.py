"""Flower's processes on this machine: started quietly, watched, and ended, all of them, whatever happens."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fedmime.deploy.flower import keeper, keys
from fedmime.deploy.flower.control import Control
from fedmime.deploy.flower.superlink import AUDIT_VARIABLE, MOST_VARIABLE, OPENING
from fedmime.deploy.flower.worker import Order
from fedmime.errors import ClusterError
from fedmime.files import private_directory

LOOPBACK = "127.0.0.1"
AUDIT = "nodes"
"""The name of the log that says which keys were let in, shut out and refused."""
_QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
_PROMPT = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1"}  # seconds; Flower waits a second before it starts a process
_MARK = "FEDMIME_LAUNCH"  # the variable by which processes of one launcher know each other
_STARTING = 60.0  # seconds that a SuperLink has to serve
_ENDING = 30.0  # seconds that everything has to end


class Launcher:
    """A context with a keeper and a private temporary directory. At its end, no process and no file there is left.

    Args:
        logs: the directory for what processes say.

    Attributes:
        directory: the temporary directory.
    """

    def __init__(self, logs: Path) -> None:
        self._logs = logs

    def __enter__(self) -> Self:
        self._logs.mkdir(parents=True, exist_ok=True)
        self.directory = Path(tempfile.mkdtemp(prefix="fedmime-deploy-"))
        command = [sys.executable, "-P", keeper.__file__, str(self.directory)]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._mark = secrets.token_hex(16)
        self._keeper = subprocess.Popen(command, **pipes, start_new_session=True)  # noqa: S603 (our own module)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._keeper.stdin is not None
        assert self._keeper.stdout is not None
        try:
            with contextlib.suppress(BrokenPipeError):  # an order that a dead keeper did not take
                self._keeper.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._keeper.wait(_ENDING)
        finally:
            self._keeper.kill()  # if it has not ended in time
            self._keeper.wait()
            self._keeper.stdout.close()
            if self._keeper.returncode:  # it was killed, and what left its children lives on
                _end_marked(f"{_MARK}={self._mark}".encode())
            shutil.rmtree(self.directory, ignore_errors=True)  # if the keeper was killed

    def start(
        self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None, again: bool = False
    ) -> None:
        """Start a process that ends with this context.

        Args:
            name: of the process and its log.
            command: the program and its arguments; `keeper.FREE_PORT` stands for one.
            environment: variables that it has beside those of this process.
            again: start it again if it ends by itself, unless it always does so at once; otherwise that is an error.
        """
        binaries = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        home = private_directory(self.directory / f"flower-{name}")
        full = {**_inherited(), **_QUIET, "PATH": binaries, "FLWR_HOME": str(home), _MARK: self._mark}
        full |= environment or {}
        told = {"name": name, "command": list(command), "environment": full, "log": str(self.log(name))}
        self._order(told | {"again": again})

    def end(self, name: str) -> None:
        """End a process."""
        self._order({"end": name})

    def log(self, name: str) -> Path:
        """The file with what a process says."""
        return self._logs / f"{name}.log"

    def check(self) -> None:
        """Raise an error if a process has ended by itself."""
        assert self._keeper.stdout is not None
        if self._keeper.poll() is not None:
            raise ClusterError("deploy: the process that keeps the others was ended, and they with it")
        if select.select([self._keeper.stdout], [], [], 0)[0] and (line := self._keeper.stdout.readline()):
            name = json.loads(line)["ended"]
            raise ClusterError(f"deploy: {name} has ended: {last_words(self.log(name))}; see {str(self.log(name))!r}")

    def _order(self, what: Mapping[str, Any]) -> None:
        assert self._keeper.stdin is not None
        try:
            self._keeper.stdin.write(json.dumps(what).encode() + b"\n")
            self._keeper.stdin.flush()
        except BrokenPipeError:
            self.check()
            raise


def _inherited() -> dict[str, str]:
    """The environment of this process without what changes how Flower's processes behave, and whom they serve."""
    return {name: value for name, value in os.environ.items() if not name.startswith("FLWR_") and name not in OPENING}


def _end_marked(mark: bytes) -> None:
    """End this user's processes that have a variable in their environment, which their descendants have, too."""
    end = time.monotonic() + _ENDING
    while time.monotonic() < end:
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if mark in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                    found.append(int(name))
                    os.kill(int(name), signal.SIGKILL)
        if not found:
            return
        time.sleep(0.05)


def last_words(log: Path) -> str:
    """The last line of a log that says something."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "without a word")


@dataclasses.dataclass(frozen=True)
class Address:
    """Where a SuperLink serves, and by what it proves to be the right one."""

    host: str
    port: int
    authority: Path

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def start_superlink(launcher: Launcher, directory: Path, host: str, port: int, most: int) -> Control:
    """Start a SuperLink, wait until it serves, and make sure that the guard stands before it.

    Args:
        launcher: with which it ends.
        directory: of its certificate and key, see `keys.make_server`.
        host: the address of this machine at which it listens.
        port: the port.
        most: bytes of the largest message that nodes may send.

    Raises:
        ClusterError: it does not serve, or strangers would be served, too.
    """
    command = [sys.executable, "-P", "-m", "fedmime.deploy.flower.superlink", "--host", host, "--port", str(port)]
    files = {"ca-certfile": keys.AUTHORITY, "certfile": keys.CERTIFICATE, "keyfile": keys.SERVER_KEY}
    for option, name in files.items():
        command += [f"--ssl-{option}", str(directory / name)]
    command += ["--enable-supernode-auth", "--disable-runtime-dependency-installation"]
    told = {MOST_VARIABLE: str(most), AUDIT_VARIABLE: str(launcher.log(AUDIT))}
    launcher.start("superlink", command, told)
    reached = {"0.0.0.0": LOOPBACK, "::": "::1"}.get(host, host)  # noqa: S104 (compared, not listened at)
    authority = directory / keys.AUTHORITY
    control = Control(str(Address(reached, port, authority)), authority)
    control.wait(_STARTING, launcher.check)
    control.demand_guard(most)
    return control


@dataclasses.dataclass(frozen=True)
class NodePlan:
    """What a node is started with."""

    name: str
    key: Path
    """The private half of its key."""
    server: Address
    order: Order


def start_node(launcher: Launcher, plan: NodePlan, patience: float) -> None:
    """Start a node in one process (`node.py`), which is started again if it crashes.

    Args:
        launcher: with which it ends.
        plan: what it is started with.
        patience: seconds for which it looks for a lost server.
    """
    told = dataclasses.asdict(plan.order)
    told |= {"address": str(plan.server), "authority": str(plan.server.authority), "key": str(plan.key)}
    file = _written(launcher, plan.name, told | {"patience": patience})
    launcher.start(plan.name, [sys.executable, "-P", "-m", "fedmime.deploy.flower.node", str(file)], again=True)


def start_supernode(launcher: Launcher, plan: NodePlan) -> None:
    """Start a SuperNode of Flower, whose ClientApp hands messages to a worker.

    Its processes reach one another at a port of this machine only, another one whenever it is started again.

    Args:
        launcher: with which it ends.
        plan: what it is started with.
    """
    home = launcher.directory / plan.name
    file = _written(launcher, plan.name, dataclasses.asdict(plan.order) | {"directory": str(home)})
    command = ["flower-supernode", "--root-certificates", str(plan.server.authority), "--superlink", str(plan.server)]
    command += ["--auth-supernode-private-key", str(plan.key), "--host", LOOPBACK, "--port", keeper.FREE_PORT]
    launcher.start(plan.name, [*command, "--node-config", f"order={json.dumps(str(file))}"], _PROMPT, again=True)


def _written(launcher: Launcher, name: str, told: Mapping[str, Any]) -> Path:
    """A file in the node's own directory that says what it is to do."""
    file = private_directory(launcher.directory / name) / "order.json"
    file.write_text(json.dumps(told))
    return file


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that nobody uses now."""
    found = [socket.socket() for _ in range(count)]
    try:
        for each in found:
            each.bind((LOOPBACK, 0))
        return [each.getsockname()[1] for each in found]
    finally:
        for each in found:
            each.close()
