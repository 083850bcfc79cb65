"""Clients in PyTorch over a real network: a cohort of both kinds, and a Flower project without JAX on its nodes."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import fedmime as fm
from deploy.flower import project
from deploy.flower.machine import ROOT, command, left_over, listening, program, simulated, started
from fedmime.data import partition
from fedmime.deploy.flower.launcher import LOOPBACK, free_ports
from fedmime.experiments import tasks

pytest.importorskip("flwr")
pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.slow

TASK, ROUNDS = "digits-two-labels", 5
CLIENT = ROOT / "examples" / "torch_node.py"
PROJECT = ROOT / "examples" / "torch_project"
KINDS = [("jax", "fedmime"), ("torch", "fedmime"), ("torch", "flower"), ("jax", "fedmime")]  # of node 0, 1, …


def loaded(process: int) -> str:
    """The files that a process has mapped, which are the libraries that it uses."""
    return Path(f"/proc/{process}/maps").read_text()


def worker(directory: Path) -> int:
    """A worker that has its log below a directory."""
    for name in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            words = (name / "cmdline").read_text()
            if "fedmime.deploy.flower.worker" in words and str(directory) in str((name / "fd" / "2").readlink()):
                return int(name.name)
    raise AssertionError("there is no worker")


def apart(one: fm.Run, other: fm.Run) -> float:
    """The largest difference between two models."""
    pairs = zip(jax.tree.leaves(one.params), jax.tree.leaves(other.params), strict=True)
    return max(float(np.abs(a - b).max()) for a, b in pairs)


@contextlib.contextmanager
def running(words: list[Any], home: Path) -> Iterator[subprocess.Popen[str]]:
    """The command line in the background."""
    with started(command(words), home) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
                process.communicate(timeout=60)


@pytest.mark.timeout(1500)
def test_a_cohort_of_both_kinds_learns_what_a_simulation_learns(tmp_path: Path, fact) -> None:
    """The commands of the documentation: two clients in JAX, two in PyTorch, one of these behind Flower's SuperNode."""
    federation, out = tmp_path / "federation", tmp_path / "run"
    (port,) = free_ports(1)
    assert program(["deploy", "keys", federation, "--server", LOOPBACK], 60, tmp_path).returncode == 0
    population = partition.regroup(tasks.get(TASK).clients(), len(KINDS))
    asked = ["--nodes", len(KINDS), "--task", TASK, "--algorithm", "mime", "--base", "adam", "--optimizer.eps", 1e-3]
    asked += ["--eta", 0.01, "--rounds", ROUNDS, "--seed", 1, "--out", out]
    with contextlib.ExitStack() as stack:
        nodes = []
        for name, (framework, kind) in zip(population.ids, KINDS, strict=True):
            home = tmp_path / name
            assert program(["deploy", "keys", home, "--node", name], 60, tmp_path).returncode == 0
            shutil.copy(home / f"{name}.pub", federation / "nodes")
            columns = population.client(name)
            np.savez(home / "data.npz", **columns)
            fm.data.from_arrays({name: columns}).save(home / "store")
            words = ["deploy", "client", "--server", f"{LOOPBACK}:{port}", "--key", home / name, "--node", kind]
            words += ["--authority", federation / "ca.crt", "--patience", 300]
            of_jax, of_torch = ["--task", TASK, "--data", home / "store"], ["--data", home / "data.npz"]
            words += of_jax if framework == "jax" else [*of_torch, "--torch", f"{CLIENT}:client"]
            nodes.append(stack.enter_context(running(words, tmp_path)))
        words = ["deploy", "server", "--keys", federation, "--host", LOOPBACK, "--port", port, *asked]
        server = stack.enter_context(running(words, tmp_path))
        said, errors = server.communicate(timeout=500)
        assert server.returncode == 0, errors
        assert f": {ROUNDS} rounds, accuracy " in said
        assert "libjax" in loaded(nodes[0].pid)
        assert "libtorch" not in loaded(nodes[0].pid)
        for process in (nodes[1].pid, worker(tmp_path)):
            assert "libtorch" in loaded(process)
            assert "libjax" not in loaded(process)
    deployed, simulation = fm.Run.load(out), fm.Run.load(simulated(out, len(KINDS), ROUNDS))
    assert deployed.history["clients"].tolist() == [len(KINDS)] * ROUNDS
    gap = apart(deployed, simulation)
    fact(f"Mime with Adam, {ROUNDS} rounds, two nodes in JAX and two in PyTorch, against a simulation", gap)
    assert gap <= 1e-4
    assert deployed.history["loss"][-1] < deployed.history["loss"][1]  # the first round gathers gradients only
    np.testing.assert_allclose(deployed.history["loss"], simulation.history["loss"], rtol=1e-4)
    assert left_over(tmp_path) == []


_SIMULATION = f"""
import sys
import numpy as np
import fedmime as fm
from torchdigits import server_app, task

parts = [task.load_data(node, 2).tensors for node in range(2)]
data = {{f"node{{i}}": {{"x": x.numpy(), "y": y.numpy().astype(np.int32)}} for i, (x, y) in enumerate(parts)}}
population = fm.data.from_arrays(data)
fm.simulate(server_app.algorithm(), server_app.problem(), population, {ROUNDS}, 2, run_dir=sys.argv[1])
"""


@pytest.mark.timeout(900)
def test_a_flower_project_with_clients_in_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fact) -> None:
    """Flower's own SuperLink, SuperNodes and `flwr run`; Mime with Adam, on nodes that never import JAX."""

    def beside() -> None:
        assert "libtorch" in loaded(worker(tmp_path))
        assert "libjax" not in loaded(worker(tmp_path))

    out = project.learn(PROJECT, 2, ROUNDS, tmp_path, monkeypatch, beside)
    simulation = project.simulate(PROJECT, _SIMULATION, tmp_path)
    gap = apart(fm.Run.load(out), fm.Run.load(simulation))
    fact(f"a Flower project in PyTorch, Mime with Adam, {ROUNDS} rounds, against a simulation", gap)
    assert gap <= 1e-4
    assert left_over(tmp_path) == []
    assert listening(tmp_path / "logs") == set()
