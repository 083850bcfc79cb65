"""What goes wrong in a real deployment costs a reply or a round, and nothing else."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import fedmime as fm
from deploy.flower.machine import as_users_run_it, command, left_over, listening, program, simulated, started
from fedmime.data import partition
from fedmime.deploy.flower import keeper, keys, operate
from fedmime.deploy.flower.node import FleetNode
from fedmime.deploy.flower.worker import Order
from fedmime.errors import ClusterError
from fedmime.experiments import tasks
from fedmime.experiments.setting import Setting, plain

pytest.importorskip("flwr")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")]  # of flwr

TASK, NODES = "digits-two-labels", 3
HERE = str(Path(__file__).parent)
BUILDER = "fedmime.deploy.flower.builders:of_task"


@pytest.fixture(autouse=True)
def _as_users_run_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    as_users_run_it(monkeypatch, tmp_path)


@contextlib.contextmanager
def deployed(tmp_path: Path, faults: Mapping[int, tuple[str, int, bool]] | None = None) -> Iterator[operate.Running]:
    """A SuperLink with nodes, some of which are faulty: what they do, after how many requests, whether only once."""
    population = partition.regroup(tasks.get(TASK).population(None), NODES)

    def orders(directory: Path) -> dict[str, Order]:
        found = {}
        for number, name in enumerate(population.ids):
            store = directory / f"{name}.store"
            fm.data.from_arrays({name: population.client(name)}).save(store)
            given = {"task": TASK, "store": str(store), "name": name, "state": str(tmp_path / "nodes" / name)}
            found[name] = Order(BUILDER, given)
            if faults and number in faults:
                fault, at, once = faults[number]
                marker = str(tmp_path / f"{name}.done") if once else None
                given |= {"fault": fault, "at": at, "once": marker}
                found[name] = Order("faulty:of_task", given, (HERE,))
        return found

    with operate.local(tmp_path / "logs", orders, 1 << 20) as running:
        yield running
    assert left_over(tmp_path) == []
    assert listening(tmp_path / "logs") == set()


def learn(
    running: operate.Running,
    out: Path,
    rounds: int,
    deadline: float = 60.0,
    on_event: Callable[[Any], None] = lambda _: None,
    **setting: Any,
) -> dict[str, np.ndarray]:
    """Run to the end; gives the history."""
    asked = Setting(task=TASK, rounds=rounds, cohort=NODES, **({"algorithm": "fedavg"} | setting))
    plan = {
        "call": "fedmime.deploy.flower.server_app:of_setting",
        "most": 1 << 20,
        "arguments": {
            "setting": plain(asked),
            "run_dir": str(out),
            "data_dir": None,
            "saving": {"every": 1},
            "waiting": {"nodes": NODES, "joining": 120.0, "deadline": deadline},
            "command": ["fedmime", "deploy"],
        },
    }
    operate.follow(running, plan, on_event, lambda: None)
    return fm.Run.load(out).history


def equal(one: Path, other: Path) -> None:
    for a, b in zip(*(jax.tree.leaves(fm.Run.load(path).params) for path in (one, other)), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_a_node_that_is_too_slow_is_left_out_and_comes_back(tmp_path: Path) -> None:
    with deployed(tmp_path, {1: ("sleep 45", 1, True)}) as running:
        history = learn(running, tmp_path / "run", 4, deadline=30.0)
    assert history["clients"][0] == 3
    assert history["clients"][1] == 2
    assert history["clients"][-1] == 3
    assert not history["abandoned"].any()


def test_a_node_that_crashes_is_left_out_and_comes_back(tmp_path: Path) -> None:
    """Its process ends in the midst of a message; it is started again, and let in when signs of life were missed."""
    with deployed(tmp_path, {0: ("exit", 1, True)}) as running:
        history = learn(running, tmp_path / "run", 10, deadline=8.0)
    assert history["clients"][0] == 3
    assert history["clients"][1] == 2
    assert history["clients"][-1] == 3
    assert not history["abandoned"].any()


def test_a_reply_that_is_too_large_costs_its_sender(tmp_path: Path) -> None:
    """It is refused before anybody reads it, and the memory of the SuperLink does not grow with it."""
    with deployed(tmp_path, {2: ("large 300000000", 1, True)}) as running:
        superlink = process_of(running, "fedmime.deploy.flower.superlink")
        before = memory(superlink)
        history = learn(running, tmp_path / "run", 3, deadline=15.0)
        grown = memory(superlink) - before
    assert history["clients"].tolist() == [3, 2, 3]
    assert grown < 100e6
    assert "413" in (tmp_path / "logs" / "superlink.log").read_text()


def process_of(running: operate.Running, word: str) -> int:
    """The process of this deployment with a word in its command."""
    assert running.launcher._keeper.pid is not None
    for found in keeper._descendants(running.launcher._keeper.pid):
        with contextlib.suppress(OSError):
            if word in Path(f"/proc/{found}/cmdline").read_text():
                return found
    raise AssertionError(f"no process runs {word}")


def memory(process: int) -> int:
    """The largest number of bytes that a process has ever occupied."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def test_a_fleet_that_is_gone_costs_rounds_and_no_model(tmp_path: Path) -> None:
    """The server waits to the deadline, abandons the round, and its state stays what it was."""
    times = []

    def on_event(event: Any) -> None:
        times.append(time.monotonic())
        if event["round"] == 0:
            for k in range(NODES):
                running.launcher.end(f"node_{k}")

    with deployed(tmp_path) as running:
        history = learn(running, tmp_path / "run", 4, deadline=4.0, on_event=on_event)
    abandoned = history["abandoned"].astype(bool)
    assert not abandoned[0]
    assert abandoned[2:].all()  # the second round may have been quicker than the end of the nodes
    assert np.diff(times)[-1] >= 3.5  # nobody is there, and the server waits for somebody
    equal(tmp_path / "run", simulated(tmp_path / "run", NODES, int((~abandoned).sum())))


def test_only_registered_keys_are_let_in(tmp_path: Path) -> None:
    """An unknown key is refused; a revoked one is refused from then on; both leave a line."""
    stranger = keys.make_node(tmp_path / "keys", "stranger")

    def on_event(event: Any) -> None:
        if event["round"] == 0:
            (home / keys.NODES / "node_1.pub").unlink()

    with deployed(tmp_path, {0: ("sleep 2", 0, False)}) as running:  # as long as the pause between two looks
        home = running.launcher.directory / "server"
        address = running.admission.control._address

        class Nobody:
            def answer(self, request: bytes) -> bytes:
                raise AssertionError("a stranger was asked")

        with pytest.raises(ClusterError, match="does not accept this node"):
            FleetNode(Nobody(), address, home / keys.AUTHORITY, stranger, patience=1.0).serve()
        history = learn(running, tmp_path / "run", 10, deadline=60.0, on_event=on_event)
        log = (tmp_path / "logs" / "node_1.log").read_text()
    assert history["clients"][0] == 3
    assert history["clients"][-1] == 2
    assert "does not accept this node" in log
    audit = (tmp_path / "logs" / "nodes.log").read_text()
    assert audit.count("is registered") == NODES
    assert "node node_1" in next(line for line in audit.splitlines() if "is revoked" in line)


def test_the_port_speaks_nothing_but_tls(tmp_path: Path) -> None:
    """Plain text gets no answer, another certificate is not trusted, too much is not read, and the run goes on."""
    with deployed(tmp_path) as running:
        host, _, port = running.admission.control._address.rpartition(":")
        with socket.create_connection((host, int(port)), 10) as plain_text:
            plain_text.sendall(b"POST /v1/fleet/pull-messages HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n")
            assert b"HTTP" not in plain_text.recv(1000)
        keys.make_server(tmp_path / "other", [host])
        context = ssl.create_default_context(cafile=str(tmp_path / "other" / keys.AUTHORITY))
        with socket.create_connection((host, int(port)), 10) as connection, pytest.raises(ssl.SSLError, match="verify"):
            context.wrap_socket(connection, server_hostname=host)
        own = ssl.create_default_context(cafile=str(running.launcher.directory / "server" / keys.AUTHORITY))
        for header, status in ((b"content-length: 2000000000", b"413"), (b"transfer-encoding: chunked", b"411")):
            with own.wrap_socket(socket.create_connection((host, int(port)), 10), server_hostname=host) as stranger:
                stranger.sendall(b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: a\r\n" + header + b"\r\n\r\n")
                assert stranger.recv(1000).startswith(b"HTTP/1.1 " + status)
        assert learn(running, tmp_path / "run", 1)["clients"].tolist() == [3]


WORDS = ["deploy", "local", "--nodes", NODES, "--task", TASK, "--algorithm", "scaffold", "--rounds", 6]


def wait_for_round(out: Path, number: int, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 200
    metrics = out / "metrics.jsonl"
    while time.monotonic() < end and process.poll() is None:
        if metrics.exists() and metrics.read_text().count("\n") >= number:
            return
        time.sleep(0.05)
    raise AssertionError(process.stderr.read() if process.poll() is not None and process.stderr else "too slow")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_run_that_was_ended_goes_on_as_if_it_had_not(number: int, code: int, tmp_path: Path) -> None:
    """SCAFFOLD's clients keep what they need on their disks; nobody's update counts twice; nothing is left behind."""
    out = tmp_path / "run"
    process = started(command([*WORDS, "--out", out]), tmp_path)
    wait_for_round(out, 2, process)
    process.send_signal(number)
    process.communicate(timeout=120)
    assert process.returncode == code
    end = time.monotonic() + 20
    while left_over(tmp_path) and time.monotonic() < end:  # a killed program cannot wait for its keeper
        time.sleep(0.1)
    assert left_over(tmp_path) == []
    assert listening(out / "logs") == set()
    assert fm.Run.load(out).history["round"].max() < 5
    done = program([*WORDS, "--out", out], 250, tmp_path)
    assert done.returncode == 0, done.stderr
    assert fm.Run.load(out).history["round"].tolist() == list(range(6))
    equal(out, simulated(out, NODES, 6))
    assert left_over(tmp_path) == []


def test_a_server_app_that_is_killed_in_mid_round_is_resumed(tmp_path: Path) -> None:
    """Only the server's process is lost, between two messages of a round; nodes and SuperLink live on."""
    out = tmp_path / "run"

    def on_event(event: Any) -> None:
        if event["round"] == 1:
            os.kill(process_of(running, "flwr-serverapp"), signal.SIGKILL)

    with deployed(tmp_path, {0: ("sleep 1", 0, False)}) as running:  # so that the signal meets a round
        with pytest.raises(ClusterError, match="has ended suddenly"):
            learn(running, out, 5, on_event=on_event, algorithm="scaffold")
        learn(running, out, 5, algorithm="scaffold")
    assert fm.Run.load(out).history["round"].tolist() == list(range(5))
    equal(out, simulated(out, NODES, 5))
