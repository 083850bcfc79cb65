"""A deployed run is a simulation elsewhere: over a real network, with real keys, it ends with the same model."""

from pathlib import Path

import jax
import numpy as np
import pytest

import fedmime as fm
from deploy.flower.machine import left_over, listening, program, simulated

pytest.importorskip("flwr")
pytestmark = pytest.mark.slow

TASK, NODES, ROUNDS = "digits-two-labels", 5, 10
SETTINGS = {
    "mime-momentum": ["--algorithm", "mime", "--base", "momentum"],
    "mime_lite-adam": ["--algorithm", "mime_lite", "--base", "adam"],
    "scaffold": ["--algorithm", "scaffold"],
    "mime_mvr": ["--algorithm", "mime_mvr"],
    "fedavg-8-bits": ["--algorithm", "fedavg", "--aggregation.quantize", "8"],
}


@pytest.mark.parametrize("name", SETTINGS)
def test_five_nodes_learn_what_a_simulation_learns(name: str, tmp_path: Path, fact) -> None:
    out = tmp_path / "run"
    words = ["deploy", "local", "--nodes", NODES, "--task", TASK, "--rounds", ROUNDS, "--out", out, *SETTINGS[name]]
    done = program(words, 280, tmp_path)
    assert done.returncode == 0, done.stderr
    assert f": {ROUNDS} rounds, accuracy " in done.stdout
    deployed, simulation = fm.Run.load(out), fm.Run.load(simulated(out, NODES, ROUNDS))
    for one, other in zip(jax.tree.leaves(deployed.params), jax.tree.leaves(simulation.params), strict=True):
        gap = float(np.abs(one - other).max())
        fact(f"deployed {name} against simulated, 10 rounds, 5 nodes", gap)
        assert gap <= 1e-5
    for column in ("loss", "test_accuracy"):
        np.testing.assert_allclose(deployed.history[column], simulation.history[column], rtol=1e-4)
    assert deployed.history["clients"].tolist() == [NODES] * ROUNDS
    assert (out / "report.html").exists()
    assert "token" not in (out / "command.txt").read_text()
    assert left_over(tmp_path) == []
    assert listening(out / "logs") == set()
