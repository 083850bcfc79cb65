"""What goes wrong in a real deployment costs a reply or a round, and nothing else."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedmime as fm
from deploy.flower.machine import as_users_run_it, command, left_over, listening, memory, program, simulated, started
from deploy.flower.running import TASK, Fault, deployed, equal, learn, process_of
from fedmime.deploy.flower import keys, operate
from fedmime.deploy.flower.audit import fingerprint
from fedmime.deploy.flower.node import FleetNode
from fedmime.errors import ClusterError
from fedmime.experiments.setting import Taking

pytest.importorskip("flwr")
pytestmark = [  # the longest wait in a test here is shorter than its time
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning"),  # of flwr
]

NODES = 3


@pytest.fixture(autouse=True)
def _as_users_run_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    as_users_run_it(monkeypatch, tmp_path)


def test_a_node_that_is_too_slow_is_left_out_and_comes_back(tmp_path: Path) -> None:
    with deployed(tmp_path, {1: Fault("sleep 45", 1, True)}) as running:
        history = learn(running, tmp_path / "run", 4, deadline=30.0)
    assert history["clients"][0] == 3
    assert history["clients"][1] == 2
    assert history["clients"][-1] == 3
    assert not history["abandoned"].any()


def test_a_node_that_crashes_is_left_out_and_comes_back(tmp_path: Path) -> None:
    """Its process ends in the midst of a message; it is started again, and let in when signs of life were missed."""
    with deployed(tmp_path, {0: Fault("exit", 1, True)}) as running:
        history = learn(running, tmp_path / "run", 10, deadline=8.0)
    assert history["clients"][0] == 3
    assert history["clients"][1] == 2
    assert history["clients"][-1] == 3
    assert not history["abandoned"].any()


def test_a_reply_that_is_too_large_costs_its_sender(tmp_path: Path) -> None:
    """It is refused before anybody reads it, and the memory of the SuperLink does not grow with it."""
    with deployed(tmp_path, {2: Fault("large 300000000", 1, True)}) as running:
        superlink = process_of(running, "fedmime.deploy.flower.superlink")
        before = memory(superlink)
        history = learn(running, tmp_path / "run", 3, deadline=15.0)
        grown = memory(superlink) - before
    assert history["clients"].tolist() == [3, 2, 3]
    assert grown < 100e6
    assert "push-object, status 413" in (tmp_path / "logs" / "nodes.log").read_text()


def test_a_fleet_that_is_gone_costs_rounds_and_no_model(tmp_path: Path) -> None:
    """The server waits to the deadline, abandons the round, and its state stays what it was."""
    times = []

    def on_event(event: Any) -> None:
        times.append(time.monotonic())
        if event["round"] == 0:
            for k in range(NODES):
                running.launcher.end(f"node_{k}")

    with deployed(tmp_path) as running:
        everybody = Taking(minimum=1.0)  # nodes end one after another: a round with some of them would be another model
        history = learn(running, tmp_path / "run", 4, deadline=4.0, on_event=on_event, participation=everybody)
    abandoned = history["abandoned"].astype(bool)
    assert not abandoned[0]
    assert abandoned[2:].all()  # the second round may have been quicker than the end of the nodes
    assert np.diff(times)[-1] >= 3.5  # nobody is there, and the server waits for somebody
    equal(tmp_path / "run", simulated(tmp_path / "run", NODES, int((~abandoned).sum())))


class Nobody:
    """A node that is not to be asked anything."""

    def answer(self, request: bytes) -> bytes:
        raise AssertionError("a stranger was asked")


def refused(running: operate.Running, key: Path) -> None:
    """A node with a key is not let in."""
    authority = running.launcher.directory / "server" / keys.AUTHORITY
    with pytest.raises(ClusterError, match="does not accept this node"):
        FleetNode(Nobody(), running.admission.control._address, authority, key, patience=1.0).serve()


def test_only_registered_keys_are_let_in(tmp_path: Path) -> None:
    """An unknown key is refused, a known one that has its node already, and a revoked one; all of them leave a line."""
    stranger = keys.make_node(tmp_path / "keys", "stranger")
    told: dict[str, str] = {}

    def on_event(event: Any) -> None:
        nodes = running.launcher.directory / "server" / keys.NODES
        if event["round"] == 0:  # all nodes are there: one key is one node, however many have it
            told.update({path.stem: fingerprint(path.read_bytes()) for path in nodes.glob("*.pub")})
            refused(running, running.launcher.directory / "keys" / "node_2")
            (nodes / "node_1.pub").rename(tmp_path / "node_1.pub")
        if event["round"] == 6:  # Flower takes no key twice
            (tmp_path / "node_1.pub").rename(nodes / "node_1.pub")

    with deployed(tmp_path, {0: Fault("sleep 2", 0, False)}) as running:  # as long as the pause between two looks
        refused(running, stranger)
        history = learn(running, tmp_path / "run", 10, deadline=60.0, on_event=on_event)
        log = (tmp_path / "logs" / "node_1.log").read_text()
    assert history["clients"][0] == 3
    assert history["clients"][-1] == 2
    assert "does not accept this node" in log
    audit = (tmp_path / "logs" / "nodes.log").read_text()
    assert audit.count("is registered") == NODES
    assert f"{told['node_1']} is revoked" in audit
    assert f"{told['node_1']} is not let in: it was revoked; make a new key" in audit
    for key in (fingerprint(stranger.with_name("stranger.pub").read_bytes()), told["node_2"], told["node_1"]):
        assert re.search(f"{re.escape(key)} is refused from 127.0.0.1: [a-z-]+, status 4", audit), audit
    assert not re.search("node_[0-9]|stranger", audit)
    assert (tmp_path / "logs" / "nodes.log").stat().st_mode & 0o777 == 0o600


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


@pytest.mark.parametrize(("algorithm", "asks", "train"), [("scaffold", 2, True), ("mime", 4, False), ("mime", 5, True)])
def test_a_server_app_that_is_killed_in_mid_round_is_resumed(
    algorithm: str, asks: int, train: bool, tmp_path: Path
) -> None:
    """Only the server's process is lost, while one node works and the others have replied; nodes and SuperLink live on.

    Mime has two exchanges in a round, for gradients and to train; it is killed in either, in the third round.
    """
    out, marker = tmp_path / "run", tmp_path / "node_0.done"

    def kill() -> None:
        end = time.monotonic() + 200
        while not marker.exists() and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(2.0)  # in which the others reply
        os.kill(process_of(running, "flwr-serverapp"), signal.SIGKILL)

    with deployed(tmp_path, {0: Fault("sleep 8", asks, True)}) as running:
        killer = threading.Thread(target=kill)
        killer.start()
        with pytest.raises(ClusterError, match="has ended suddenly"):
            learn(running, out, 5, algorithm=algorithm)
        killer.join()
        assert json.loads(marker.read_text()) == {"round": 2, "train": train}
        assert fm.Run.load(out).history["round"].tolist() == [0, 1]
        history = learn(running, out, 5, algorithm=algorithm)
    assert history["round"].tolist() == list(range(5))
    assert history["clients"].tolist() == [NODES] * 5
    equal(out, simulated(out, NODES, 5))
