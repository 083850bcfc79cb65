"""An ordinary Flower project with Flower's own SuperLink, SuperNodes and `flwr run`: examples/flower_project."""

from pathlib import Path

import jax
import numpy as np
import pytest

import fedmime as fm
from deploy.flower import project
from deploy.flower.machine import ROOT, left_over, listening

pytest.importorskip("flwr")

PROJECT = ROOT / "examples" / "flower_project"
NODES, ROUNDS = 2, 2

_SIMULATION = f"""
import sys
import fedmime as fm
from digits import task

population = fm.data.digits(clients={NODES}, alpha=0.5)
fm.simulate(task.algorithm(), task.problem(), population, {ROUNDS}, {NODES}, run_dir=sys.argv[1])
"""


@pytest.mark.timeout(900)
def test_two_supernodes_learn_what_a_simulation_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fact) -> None:
    """Each message is a new process of Flower's, which hands it to a worker; the two lines of an app are enough."""
    out = project.learn(PROJECT, NODES, ROUNDS, tmp_path, monkeypatch)
    simulation = project.simulate(PROJECT, _SIMULATION, tmp_path)
    deployed, simulated = (jax.tree.leaves(fm.Run.load(path).params) for path in (out, simulation))
    for one, other in zip(deployed, simulated, strict=True):
        fact("a Flower project against a simulation, 2 rounds, 2 SuperNodes", float(np.abs(one - other).max()))
        np.testing.assert_allclose(one, other, atol=1e-5)
    assert left_over(tmp_path) == []
    assert listening(tmp_path / "logs") == set()
