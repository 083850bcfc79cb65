"""What a deployed round costs: CPU seconds by process, time, and bytes at the sockets. Run it by `python -m`.

Everything is on this machine, as in `fedmime deploy local`; nodes reach the SuperLink through a relay that counts. With
`--node flower` nodes are Flower's SuperNodes, which start a process for every message; otherwise they are our own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

import fedmime as fm
from benchmarks.relay import Bytes, Relay
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
from fedmime.deploy.layout import layout_of
from fedmime.deploy.secure.options import SecureSum, fields_of
from fedmime.deploy.secure.traffic import secure_cost
from fedmime.experiments import train
from fedmime.experiments.setting import Messages, Setting, plain

_ROOT = Path(__file__).parent.parent
_TICKS = os.sysconf("SC_CLK_TCK")
_WARM = 2  # rounds before the first that counts: in the first two, programs are compiled
_TARGET = 2.5  # CPU seconds of a message, at most
_ROLES = {  # what a process is, by a word of its command
    "flwr-serverapp": "server: ServerApp",
    "flower.superlink": "server: SuperLink",
    "flwr-clientapp": "node: ClientApp, a process for every message",
    "flower-superexec": "SuperExec, which starts processes",
    "flower-supernode": "node: SuperNode",
    "flower.worker": "node: worker",
    "flower.node": "node: one process",
}
_CLIENT_APP = _ROLES["flwr-clientapp"]


class Seen(NamedTuple):
    """What was counted at the end of a round, from the beginning."""

    at: float
    """Seconds."""
    cpu: Counter[str]
    """CPU seconds by what a process is."""
    passed: Bytes


def cpu(of: int) -> Counter[str]:
    """CPU seconds of a process' descendants and of those that they have outlived, by what they are."""
    found: Counter[str] = Counter()
    for process in keeper._descendants(of):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{process}/cmdline").read_text()
            role = next((role for word, role in _ROLES.items() if word in words), "other")
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            found[role] += (int(fields[11]) + int(fields[12])) / _TICKS
            ended = (int(fields[13]) + int(fields[14])) / _TICKS
            found[_CLIENT_APP if role == _ROLES["flower-superexec"] else role] += ended
    return found


@contextlib.contextmanager
def running(prepared: Any, nodes: int, flower: bool, home: Path) -> Iterator[tuple[operate.Running, Relay]]:
    """A deployment whose nodes, one for each of the task's first clients, go through a relay."""
    clients = {f"node_{k}": prepared.population.client_at(k) for k in range(nodes)}
    with Launcher(home / "logs") as launcher:
        server = launcher.directory / "server"
        keys.make_server(server, [LOOPBACK])
        (port,) = free_ports(1)
        control = start_superlink(launcher, server, LOOPBACK, port, 1 << 28)
        with contextlib.closing(Relay(port)) as relay:
            address = Address(LOOPBACK, relay.port, server / keys.AUTHORITY)
            for name, columns in clients.items():
                key = keys.make_node(launcher.directory / "keys", name)
                key.with_name(f"{name}.pub").rename(server / keys.NODES / f"{name}.pub")
                store = home / f"{name}.store"
                fm.data.from_arrays({name: columns}).save(store)
                given = {"task": prepared.setting.task, "store": str(store), "name": name, "state": str(home / name)}
                given["log"] = str(home / f"{name}.times")
                plan = NodePlan(name, key, address, Order("benchmarks.deployment_node:of_task", given, (str(_ROOT),)))
                if flower:
                    start_supernode(launcher, plan)
                else:
                    start_node(launcher, plan, 60.0)
            admission = Admission(control, server / keys.NODES)
            admission.update()
            yield operate.Running(launcher, admission), relay


def learn(prepared: Any, nodes: int, flower: bool, home: Path, secure: SecureSum | None = None) -> list[Seen]:
    """Run to the end; what was counted after every round."""
    seen: list[Seen] = []
    with running(prepared, nodes, flower, home) as (deployment, relay):
        own = deployment.launcher._keeper.pid

        def on_event(event: Any) -> None:
            seen.append(Seen(time.monotonic(), cpu(own), relay.read()))

        arguments = {
            "setting": plain(prepared.setting),
            "run_dir": str(home / "run"),
            "data_dir": None,
            "saving": {},
            "waiting": {"nodes": nodes, "joining": 600.0, "deadline": 600.0},
            "command": sys.argv,
            "secure": fields_of(secure),
        }
        plan = {"call": "fedmime.deploy.flower.server_app:of_setting", "most": 1 << 28, "arguments": arguments}
        operate.follow(deployment, plan, on_event, lambda: None)
    return seen


def prepared_for(
    task: str, algorithm: Any, nodes: int, rounds: int, steps: int, messages: Messages | None = None, base: Any = None
) -> Any:
    """A run of all nodes in every round."""
    numbers = {"rounds": rounds, "cohort": nodes, "steps": steps, "evaluate_every": rounds}
    return train.prepare(Setting(task, algorithm, base, aggregation=messages or Messages(), **numbers))


def cost_of(prepared: Any, nodes: int, secure: SecureSum | None = None) -> communication.Cost:
    """What a client exchanges with the server in a round, as the library counts it."""
    model = jax.eval_shape(prepared.problem.init, jax.random.key(0))
    cost = communication.cost(prepared.algorithm, model, prepared.aggregation)
    if secure is None:
        return cost
    return secure_cost(cost, prepared.algorithm, layout_of(prepared.algorithm, model), secure, nodes)


def start_of_flower() -> float:
    """CPU seconds of a ClientApp's process that does nothing but import Flower."""
    command = [str(Path(sys.executable).parent / "flwr-clientapp"), "--help"]
    spent = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return sorted(spent)[len(spent) // 2]


def answered(home: Path, first: Seen, last: Seen) -> list[dict[str, float]]:
    """What nodes wrote down of the messages between two moments; the clock is one for all processes of a machine."""
    told = [json.loads(line) for file in home.glob("*.times") for line in file.read_text().splitlines()]
    return [each for each in told if first.at < each.pop("at") <= last.at]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="handwriting-mlp")
    parser.add_argument("--algorithm", default="mime")
    parser.add_argument("--nodes", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--node", choices=("fedmime", "flower"), default="fedmime")
    parser.add_argument("--secure", action="store_true", help="mask messages, which are clipped for that")
    parser.add_argument("--steps", type=int, default=5, help="local steps, few, since they are not what is measured")
    args = parser.parse_args()
    if args.rounds <= _WARM:
        parser.error(f"--rounds must be more than the {_WARM} that do not count, got {args.rounds}")
    secure = SecureSum() if args.secure else None
    messages = Messages(clip=1.0) if args.secure else None
    prepared = prepared_for(args.task, args.algorithm, args.nodes, args.rounds, args.steps, messages)
    with tempfile.TemporaryDirectory() as directory:
        seen = learn(prepared, args.nodes, args.node == "flower", Path(directory), secure)
        first, last, rounds = seen[_WARM - 1], seen[-1], len(seen) - _WARM
        told = answered(Path(directory), first, last)
    masked = ", masked" if args.secure else ""
    print(f"{args.task}, {args.algorithm}{masked}, {args.nodes} nodes ({args.node}), rounds {_WARM + 1} to {len(seen)}")
    each = len(told) / rounds / args.nodes
    print(f"time of a round: {(last.at - first.at) / rounds:.2f} s, {each:.0f} messages to each node")
    tell_cpu(last.cpu - first.cpu, told, start_of_flower() if args.node == "flower" else None)
    tell_bytes(first.passed, last.passed, rounds, cost_of(prepared, args.nodes, secure).bytes * args.nodes)


def tell_cpu(spent: Counter[str], messages: Sequence[Mapping[str, float]], start: float | None) -> None:
    """Print CPU seconds of a message, to the node and back, and where they go."""
    count = len(messages)
    total = spent.total() / count
    print(f"CPU seconds of a message: {total:.3f}, at most {_TARGET}: {'yes' if total <= _TARGET else 'NO'}")
    for role, seconds in spent.most_common():
        print(f"  {role:46} {seconds / count:.3f}")
        if role == _CLIENT_APP and start is not None:
            print(f"    of which to start Python and import Flower   {start:.3f}")
        if role in (_ROLES["flower.worker"], _ROLES["flower.node"]):
            for part in messages[0]:
                print(f"    of which to {part:32} {sum(each[part] for each in messages) / count:.4f}")


def tell_bytes(first: Bytes, last: Bytes, rounds: int, expected: int) -> None:
    """Print the bytes of a round at the sockets beside those that the library counts."""
    down, up = (last.down - first.down) / rounds, (last.up - first.up) / rounds
    print(f"bytes of a round at the sockets: {down:,.0f} down, {up:,.0f} up, {down + up:,.0f} in all")
    beside = down + up - expected
    print(f"communication.cost: {expected:,}; beside it the sockets carry {beside:,.0f}, {beside / expected:+.2%}")


if __name__ == "__main__":
    main()
