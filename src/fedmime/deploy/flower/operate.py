"""A deployed run from the operator's side: start what Flower needs, let nodes in, follow the run, and clean up."""

from __future__ import annotations

import contextlib
import logging
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedmime.deploy.flower import audit, keys
from fedmime.deploy.flower.admission import Admission
from fedmime.deploy.flower.control import Control
from fedmime.deploy.flower.launcher import (
    AUDIT,
    LOOPBACK,
    Address,
    Launcher,
    NodePlan,
    free_ports,
    start_node,
    start_superlink,
    start_supernode,
)
from fedmime.deploy.flower.node import FleetNode
from fedmime.deploy.flower.session import Session
from fedmime.deploy.flower.worker import Order
from fedmime.errors import ClusterError, Stopped
from fedmime.files import private_directory

_BEGINNING = 120.0  # seconds that a ServerApp has to begin
_LOOK = 3.0  # seconds between two looks at what Flower says of the run
_PAUSE = 0.5  # seconds
_TRIES = 3  # to find a free port, since another process may take it first


class Running(NamedTuple):
    """A SuperLink that serves."""

    launcher: Launcher
    admission: Admission


@contextlib.contextmanager
def local(
    logs: Path, orders: Callable[[Path], Mapping[str, Order]], most: int, flower: bool = False
) -> Iterator[Running]:
    """Everything of a deployment on this machine: a SuperLink and a node for each order, with keys made for it.

    Args:
        logs: the directory for what processes say.
        orders: how to build the nodes, by name, from a temporary directory in which their data can be.
        most: bytes of the largest message that nodes may send.
        flower: run Flower's own SuperNodes with workers, instead of nodes in one process.
    """
    with Launcher(logs) as launcher, _audit(logs):
        home = launcher.directory / "server"
        keys.make_server(home, [LOOPBACK, "localhost"])
        control, server = _superlink_anywhere(launcher, home, most)
        plans = []
        for name, order in orders(private_directory(launcher.directory / "data")).items():
            key = keys.make_node(launcher.directory / "keys", name)
            key.with_name(f"{name}.pub").rename(home / keys.NODES / f"{name}.pub")
            plans.append(NodePlan(name, key, server, order))
        admission = Admission(control, home / keys.NODES)
        admission.update()
        for plan in plans:
            if flower:
                start_supernode(launcher, plan)
            else:
                start_node(launcher, plan, patience=_BEGINNING)
        yield Running(launcher, admission)


def _superlink_anywhere(launcher: Launcher, home: Path, most: int) -> tuple[Control, Address]:
    """A SuperLink at a port of the loopback interface that was free."""
    for left in reversed(range(_TRIES)):
        (port,) = free_ports(1)
        try:
            control = start_superlink(launcher, home, LOOPBACK, port, most)
        except ClusterError:
            launcher.end("superlink")  # it may have come late, or serve whom it should not
            if not left:
                raise
        else:
            return control, Address(LOOPBACK, port, home / keys.AUTHORITY)
    raise AssertionError


@contextlib.contextmanager
def served(logs: Path, home: Path, host: str, port: int, most: int) -> Iterator[Running]:
    """A SuperLink for nodes on other machines.

    Args:
        logs: the directory for what processes say.
        home: the directory of `keys.make_server`.
        host: the address of this machine at which it listens.
        port: the port.
        most: bytes of the largest message that nodes may send.
    """
    with Launcher(logs) as launcher, _audit(logs):
        control = start_superlink(launcher, home, host, port, most)
        yield Running(launcher, Admission(control, home / keys.NODES))


def node(plan: NodePlan, patience: float, flower: bool) -> None:
    """Run one node, in this process or as Flower's SuperNode, until a signal or the loss of its server ends it.

    Args:
        plan: what it is started with.
        patience: seconds for which a server that is away is tried again; Flower's own has no end.
        flower: run Flower's SuperNode.
    """
    if not flower:
        FleetNode(plan.order.build(), str(plan.server), plan.server.authority, plan.key, patience).serve()
        return
    with Launcher(plan.key.parent / "logs") as launcher:
        start_supernode(launcher, plan)
        while True:
            launcher.check()
            time.sleep(_PAUSE)


def follow(
    running: Running,
    plan: Mapping[str, Any],
    on_event: Callable[[Mapping[str, Any]], None],
    stop: Callable[[], int | None],
) -> None:
    """Start a run, and follow it to its end. Nodes are let in and shut out while it lasts.

    Args:
        running: the SuperLink.
        plan: for the ServerApp, see `launched.py`.
        on_event: called with what the ServerApp tells, such as a finished round.
        stop: gives the signal for which the run is to end, if there is one.

    Raises:
        FedmimeError: what the run has ended with.
    """
    launcher, admission = running
    looked, stopped = time.monotonic(), None

    def alive() -> None:
        nonlocal looked
        launcher.check()
        if time.monotonic() - looked > _LOOK:
            looked = time.monotonic()
            admission.control.check(run)

    with contextlib.closing(Session(launcher.directory / "session", plan)) as session:
        run = admission.control.run(launcher.directory / "session")
        for event in session.events(_BEGINNING, alive):
            admission.update()
            if event is not None:
                on_event(event)
            if stopped is None and (stopped := stop()) is not None and not session.stop(stopped):
                raise Stopped(f"stopped by {signal.Signals(stopped).name} before the first round", stopped)


@contextlib.contextmanager
def _audit(logs: Path) -> Iterator[None]:
    """Write down which keys were let in and shut out; the SuperLink adds which it refused."""
    logs.mkdir(parents=True, exist_ok=True)
    handler = audit.written_to(logs / f"{AUDIT}.log")
    before, audit.LOG.propagate = audit.LOG.propagate, False
    audit.LOG.setLevel(logging.INFO)
    audit.LOG.addHandler(handler)
    try:
        yield
    finally:
        audit.LOG.removeHandler(handler)
        audit.LOG.propagate = before
        handler.close()
