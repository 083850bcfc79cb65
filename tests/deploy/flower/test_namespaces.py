"""Server and clients in two network namespaces, joined by one link: the commands of two machines, and what crosses."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import fedmime as fm
from deploy.flower import capture
from deploy.flower.machine import command, left_over, program, simulated, started
from fedmime.data import partition
from fedmime.experiments import tasks

pytest.importorskip("flwr")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="it takes root and the command ip"),
]

TASK, NODES, ROUNDS, SERVER, PORT = "digits-two-labels", 5, 10, "10.77.0.1", 9092


_STRANGER = """
import http.client, ssl, sys
context = ssl.create_default_context(cafile=sys.argv[1])
for path in ("/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/acquire-task", "/docs"):
    connection = http.client.HTTPSConnection(sys.argv[2], context=context, timeout=20)
    connection.request("POST", path, b"", {"content-type": "application/x-protobuf"})
    print(connection.getresponse().status)
"""


class Machine:
    """A network namespace."""

    def __init__(self, name: str, home: Path) -> None:
        self.name, self.home = name, home

    def start(self, words: list[str]) -> subprocess.Popen[str]:
        return started(["ip", "netns", "exec", self.name, *words], self.home)

    def listening(self) -> dict[int, bool]:
        """The ports at which somebody listens, and whether the other machine reaches them."""
        words = ["ip", "netns", "exec", self.name, "cat", "/proc/net/tcp", "/proc/net/tcp6"]
        found: dict[int, bool] = {}
        for line in subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines():
            fields = line.split()
            if len(fields) > 9 and fields[3] == "0A":
                address, _, port = fields[1].rpartition(":")
                loopback = address in ("0100007F", "00000000000000000000000001000000")
                found[int(port, 16)] = found.get(int(port, 16), False) or not loopback
        return found


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[tuple[Machine, Machine]]:
    """A server's and the clients' machine."""
    names = [f"fedmime-{side}-{os.getpid()}" for side in ("server", "clients")]
    run = lambda *words: subprocess.run(["ip", *words], check=True, capture_output=True)
    try:
        for name in names:
            run("netns", "add", name)
            run("-n", name, "link", "set", "lo", "up")
        run("link", "add", "link0", "netns", names[0], "type", "veth", "peer", "name", "link1", "netns", names[1])
        for number, name in enumerate(names):
            run("-n", name, "addr", "add", f"10.77.0.{number + 1}/24", "dev", f"link{number}")
            run("-n", name, "link", "set", f"link{number}", "up")
        yield Machine(names[0], tmp_path), Machine(names[1], tmp_path)
    finally:
        for name in names:
            with contextlib.suppress(subprocess.CalledProcessError):
                run("netns", "del", name)


@pytest.mark.timeout(1500)
def test_two_machines_share_a_model_and_the_link_carries_tls_only(
    tmp_path: Path, machines: tuple[Machine, Machine], fact
) -> None:
    server, clients = machines
    federation, out, link = tmp_path / "federation", tmp_path / "run", tmp_path / "link"
    assert program(["deploy", "keys", federation, "--server", SERVER], 60, tmp_path).returncode == 0
    population = partition.regroup(tasks.get(TASK).clients(), NODES)
    for name in population.ids:
        assert program(["deploy", "keys", tmp_path / name, "--node", name], 60, tmp_path).returncode == 0
        shutil.copy(tmp_path / name / f"{name}.pub", federation / "nodes")
        shutil.copy(federation / "ca.crt", tmp_path / name)
        fm.data.from_arrays({name: population.client(name)}).save(tmp_path / name / "store")
    with contextlib.ExitStack() as stack:

        def run(machine: Machine, words: list[str]) -> subprocess.Popen[str]:
            process = stack.enter_context(machine.start(words))
            stack.callback(process.kill)
            return process

        recorder = run(server, [sys.executable, capture.__file__, "link0", str(link)])
        assert recorder.stdout is not None
        assert recorder.stdout.readline() == "ready\n"
        asked = ["--nodes", NODES, "--task", TASK, "--algorithm", "mime", "--base", "momentum"]
        asked += ["--rounds", ROUNDS, "--out", out]
        words = command(["deploy", "server", "--keys", federation, "--host", SERVER, "--port", PORT, *asked])
        serving = run(server, words)
        nodes = []
        for name in population.ids:
            given = ["--key", tmp_path / name / name, "--authority", tmp_path / name / "ca.crt"]
            given += ["--data", tmp_path / name / "store", "--task", TASK, "--patience", 200]
            nodes.append(run(clients, command(["deploy", "client", "--server", f"{SERVER}:{PORT}", *given])))
        for process in nodes:
            assert process.stderr is not None
            while "connected to" not in process.stderr.readline():
                assert process.poll() is None
        assert {port for port, reached in server.listening().items() if reached} == {PORT}
        assert clients.listening() == {}
        words = [sys.executable, "-c", _STRANGER, str(federation / "ca.crt"), f"{SERVER}:{PORT}"]
        assert run(clients, words).communicate(timeout=60)[0].split() == ["403"] * 4
        said, errors = serving.communicate(timeout=500)
        assert serving.returncode == 0, errors
        assert f": {ROUNDS} rounds, accuracy " in said
        for node in nodes:
            node.terminate()
            node.communicate(timeout=30)
            assert node.returncode == 143
        assert server.listening() == clients.listening() == {}
        recorder.kill()
        recorder.communicate()
    deployed, simulation = (jax.tree.leaves(fm.Run.load(path).params) for path in (out, simulated(out, NODES, ROUNDS)))
    for one, other in zip(deployed, simulation, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    assert capture.strangers(link) == []
    found = capture.streams(link)
    assert len(found) >= 2 * NODES
    sent = 0
    for flow, stream in found.items():
        assert PORT in flow
        records = capture.records(stream)
        assert records[0][0] == capture.HANDSHAKE
        if flow[1] == PORT:
            assert capture.TLS_1_3 in records[0][1]
        sent += sum(len(content) for kind, content in records if kind == capture.APPLICATION_DATA)
        for word in (b"HTTP", b"fedmime", b"flwr", b"node_0", *secrets(deployed)):
            assert word not in stream
    algorithm = fm.algorithms.mime(fm.optimizers.momentum(), eta=0.1)
    assert sent >= NODES * ROUNDS * fm.communication.cost(algorithm, fm.Run.load(out).params).bytes
    fact("connections between two machines, all of them TLS to the last byte", len(found) / 2)
    assert left_over(tmp_path) == []


def secrets(arrays: list[Any]) -> list[bytes]:
    """Pieces of the last model, as long as no chance would bring about."""
    return [np.asarray(array).tobytes()[:32] for array in arrays]
