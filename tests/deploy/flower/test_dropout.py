"""Drop-outs under over-selection: 130 % of the cohort are asked, so that enough reply when some do not.

Five nodes could not show it: 130 % of a cohort of four are all of them, and a tenth of them is nobody. So ten nodes
share one process, each with a key and connections of its own.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedmime as fm
from deploy.flower.machine import as_users_run_it, left_over, listening
from deploy.flower.running import HERE, TASK, learn
from fedmime.data import partition
from fedmime.deploy.flower import keys, operate
from fedmime.experiments import tasks
from fedmime.experiments.setting import Taking

pytest.importorskip("flwr")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning"),  # of flwr
]

NODES, COHORT, ROUNDS = 10, 7, 6


def dropping(tmp_path: Path, drops: int, deadline: float, seconds: float) -> tuple[dict[str, np.ndarray], list[float]]:
    """The history of a run of which so many nodes drop out of every round, for some seconds; when rounds were over."""
    times: list[float] = []

    def on_event(event: Any) -> None:
        times.append(time.monotonic())

    population = partition.regroup(tasks.population(TASK), NODES)
    store = tmp_path / "all.store"
    fm.data.from_arrays({name: population.client(name) for name in population.ids}).save(store)
    with operate.local(tmp_path / "logs", lambda _: {}, 1 << 20) as running:
        server = running.launcher.directory / "server"
        for name in population.ids:
            key = keys.make_node(running.launcher.directory / "keys", name)
            key.with_name(f"{name}.pub").rename(server / keys.NODES / f"{name}.pub")
        told = {"nodes": NODES, "drops": drops, "seconds": seconds, "task": TASK, "store": str(store)}
        told |= {"address": running.admission.control._address, "authority": str(server / keys.AUTHORITY)}
        (tmp_path / "crowd.json").write_text(json.dumps(told | {"keys": str(running.launcher.directory / "keys")}))
        running.launcher.start("crowd", [sys.executable, f"{HERE}/crowd.py", str(tmp_path / "crowd.json")])
        taking = Taking(over_selection=1.3, minimum=0.5)
        given = {"cohort": COHORT, "nodes": NODES, "participation": taking}
        history = learn(running, tmp_path / "run", ROUNDS, deadline=deadline, joining=240.0, on_event=on_event, **given)
    assert left_over(tmp_path) == []
    assert listening(tmp_path / "logs") == set()
    return history, times


@pytest.fixture(autouse=True)
def _as_users_run_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    as_users_run_it(monkeypatch, tmp_path)


@pytest.mark.parametrize("drops", [1, 3])
def test_those_that_drop_out_cost_nothing(drops: int, tmp_path: Path) -> None:
    """Every round has as many clients as were planned, out of those that are there, and none waits for its deadline."""
    history, times = dropping(tmp_path, drops, deadline=200.0, seconds=5.0)
    assert history["clients"].tolist() == [COHORT] * ROUNDS
    assert not history["refused"].any()
    assert not history["abandoned"].any()
    assert np.diff(times).max() < 150
    assert np.isfinite(history["loss"]).all()
