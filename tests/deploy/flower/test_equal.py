"""A deployed run is a simulation elsewhere: over a real network, with real keys, it ends with the same model."""

from pathlib import Path

import jax
import numpy as np
import pytest

import fedmime as fm
from deploy.flower.machine import left_over, listening, program, simulated

pytest.importorskip("flwr")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # longer than a run and its simulation may take

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


def test_a_private_run_accounts_for_what_a_simulation_does(tmp_path: Path) -> None:
    """The noise is the server's own and nobody knows it, so the models differ; epsilon, the ledger, does not."""
    out = tmp_path / "run"
    words = ["deploy", "local", "--nodes", NODES, "--cohort", 3, "--task", TASK, "--rounds", 3, "--out", out]
    words += ["--algorithm", "mime", "--base", "momentum", "--weights", "uniform"]
    done = program([*words, "--aggregation.clip", 1, "--aggregation.noise", 2, "--json"], 280, tmp_path)
    assert done.returncode == 0, done.stderr
    run, simulation = fm.Run.load(out), fm.Run.load(simulated(out, NODES, 3))
    assert run.history["epsilon"].tolist() == simulation.history["epsilon"].tolist()
    assert np.diff(run.history["epsilon"]).min() > 0
    assert run.history["clients"].tolist() == [3, 3, 3]
    for one, other in zip(jax.tree.leaves(run.params), jax.tree.leaves(simulation.params), strict=True):
        assert np.abs(one - other).max() > 1e-3
    assert left_over(tmp_path) == []
    assert listening(out / "logs") == set()


def test_flowers_own_supernodes_learn_the_same(tmp_path: Path) -> None:
    """Every message is a new process, which hands it to a worker."""
    out = tmp_path / "run"
    words = ["deploy", "local", "--node", "flower", "--nodes", 2, "--task", TASK, "--rounds", 2, "--out", out]
    done = program([*words, *SETTINGS["scaffold"]], 290, tmp_path)
    assert done.returncode == 0, done.stderr
    deployed, simulation = (jax.tree.leaves(fm.Run.load(path).params) for path in (out, simulated(out, 2, 2)))
    for one, other in zip(deployed, simulation, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    assert left_over(tmp_path) == []
    assert listening(out / "logs") == set()
