"""What a deployed round costs: CPU seconds by process, time, and bytes at the sockets. Run it by `python -m`.

Everything is on this machine, as in `fedmime deploy local`; nodes reach the SuperLink through a proxy that counts.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

import fedmime as fm
from fedmime.aggregation import communication
from fedmime.deploy.flower import keeper, keys, operate
from fedmime.deploy.flower.admission import Admission
from fedmime.deploy.flower.launcher import (
    LOOPBACK,
    Address,
    Launcher,
    NodePlan,
    free_ports,
    start_node,
    start_superlink,
    start_supernode,
)
from fedmime.deploy.flower.worker import Order
from fedmime.experiments import train
from fedmime.experiments.setting import Setting, plain

_TICKS = os.sysconf("SC_CLK_TCK")
_ROLES = ("flwr-serverapp", "flwr-clientapp", "flower-superexec", "flower-supernode", "flower.superlink")
_ROLES += ("flower.worker", "flower.node", "keeper.py")


class Proxy:
    """Passes connections on to a port, and counts bytes in both directions."""

    def __init__(self, port: int) -> None:
        self._port, self.up, self.down = port, 0, 0
        self._listener = socket.create_server((LOOPBACK, 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection((LOOPBACK, self._port))
                for source, target, name in ((client, server, "up"), (server, client, "down")):
                    threading.Thread(target=self._pass, args=(source, target, name), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, name: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                setattr(self, name, getattr(self, name) + len(data))
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)


def cpu(of: int) -> Counter[str]:
    """CPU seconds of a process' descendants and of those that they have outlived, by what they are."""
    found: Counter[str] = Counter()
    for process in keeper._descendants(of):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{process}/cmdline").read_text()
            role = next((role for role in _ROLES if role in words), "other")
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            found[role] += (int(fields[11]) + int(fields[12])) / _TICKS
            ended = (int(fields[13]) + int(fields[14])) / _TICKS
            found["flwr-clientapp" if role == "flower-superexec" else role] += ended
    return found


@contextlib.contextmanager
def running(prepared: Any, nodes: int, flower: bool, home: Path) -> Iterator[tuple[operate.Running, Proxy]]:
    """A deployment whose nodes, one for each of the task's first clients, go through a proxy."""
    clients = {f"node_{k}": prepared.population.client_at(k) for k in range(nodes)}
    with Launcher(home / "logs") as launcher:
        server = launcher.directory / "server"
        keys.make_server(server, [LOOPBACK])
        port, *others = free_ports(1 + nodes)
        control = start_superlink(launcher, server, LOOPBACK, port, 1 << 28)
        proxy = Proxy(port)
        address = Address(LOOPBACK, proxy.port, server / keys.AUTHORITY)
        admission = Admission(control, server / keys.NODES)
        for (name, columns), other in zip(clients.items(), others, strict=True):
            key = keys.make_node(launcher.directory / "keys", name)
            key.with_name(f"{name}.pub").rename(server / keys.NODES / f"{name}.pub")
            store = home / f"{name}.store"
            fm.data.from_arrays({name: columns}).save(store)
            given = {"task": prepared.setting.task, "store": str(store), "name": name, "state": str(home / name)}
            plan = NodePlan(name, key, address, Order("fedmime.deploy.flower.builders:of_task", given))
            if flower:
                start_supernode(launcher, plan, other)
            else:
                start_node(launcher, plan, 60.0)
        admission.update()
        yield operate.Running(launcher, admission), proxy


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="handwriting-mlp")
    parser.add_argument("--algorithm", default="mime")
    parser.add_argument("--nodes", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--node", choices=("fedmime", "flower"), default="fedmime")
    parser.add_argument("--steps", type=int, default=5, help="local steps, few, since they are not what is measured")
    args = parser.parse_args()
    setting = Setting(
        args.task, args.algorithm, rounds=args.rounds, cohort=args.nodes, steps=args.steps, evaluate_every=args.rounds
    )
    prepared = train.prepare(setting)
    seen: list[tuple[float, Counter[str], int, int]] = []
    with (
        tempfile.TemporaryDirectory() as directory,
        running(prepared, args.nodes, args.node == "flower", Path(directory)) as (deployment, proxy),
    ):
        own = deployment.launcher._keeper.pid

        def on_event(event: Any) -> None:
            seen.append((time.monotonic(), cpu(own), proxy.down, proxy.up))

        arguments = {
            "setting": plain(prepared.setting),
            "run_dir": str(Path(directory) / "run"),
            "data_dir": None,
            "saving": {},
            "waiting": {"nodes": args.nodes, "joining": 600.0, "deadline": 600.0},
            "command": sys.argv,
        }
        plan = {"call": "fedmime.deploy.flower.server_app:of_setting", "most": 1 << 28, "arguments": arguments}
        operate.follow(deployment, plan, on_event, lambda: None)
    tell(args, prepared, seen)


def tell(args: argparse.Namespace, prepared: Any, seen: list[tuple[float, Counter[str], int, int]]) -> None:
    """Print figures of the rounds after the first two, which compile."""
    (begun, cpu_before, down_before, up_before), (ended, cpu_after, down_after, up_after) = seen[1], seen[-1]
    rounds = len(seen) - 2
    model = jax.eval_shape(prepared.problem.init, jax.random.key(0))
    cost = communication.cost(prepared.algorithm, model, prepared.aggregation)
    exchanges = 1 if cost.gradient is None or not prepared.algorithm.waits else 2
    messages = rounds * args.nodes * exchanges
    spent = cpu_after - cpu_before
    print(f"{args.task}, {args.algorithm}, {args.nodes} nodes ({args.node}), rounds 3 to {len(seen)}")
    print(f"time of a round: {(ended - begun) / rounds:.2f} s")
    print(f"CPU seconds a message: {sum(spent.values()) / messages:.3f}")
    for role, seconds in spent.most_common():
        print(f"  {role:20} {seconds / messages:.3f}")
    down, up = (down_after - down_before) / rounds, (up_after - up_before) / rounds
    expected = cost.bytes * args.nodes
    print(f"bytes at the sockets a round: {down:,.0f} down, {up:,.0f} up, {down + up:,.0f} in all")
    print(f"communication.cost: {expected:,}; the sockets carry {(down + up) / expected - 1:+.2%}")


if __name__ == "__main__":
    sys.exit(main())
