"""An ordinary Flower project with Flower's own SuperLink, SuperNodes and `flwr run`: examples/flower_project."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fedmime as fm
from deploy.flower.machine import ROOT, as_users_run_it, environment, left_over, listening
from fedmime.deploy.flower import keys
from fedmime.deploy.flower.launcher import LOOPBACK, Launcher, free_ports, start_superlink

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


@pytest.mark.timeout(280)
def test_two_supernodes_learn_what_a_simulation_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fact) -> None:
    """Each message is a new process of Flower's, which hands it to a worker; the two lines of an app are enough."""
    as_users_run_it(monkeypatch, tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    out = tmp_path / "run"
    with Launcher(tmp_path / "logs") as launcher:
        home = launcher.directory / "server"
        keys.make_server(home, [LOOPBACK])
        port, *others = free_ports(1 + NODES)
        control = start_superlink(launcher, home, LOOPBACK, port, 1 << 24)
        for node, other in enumerate(others):
            key = keys.make_node(launcher.directory / "keys", f"node{node}")
            control.register(key.with_name(f"{key.name}.pub"))
            words = ["flower-supernode", "--root-certificates", str(home / keys.AUTHORITY)]
            words += ["--superlink", f"{LOOPBACK}:{port}", "--auth-supernode-private-key", str(key)]
            words += ["--host", LOOPBACK, "--port", str(other)]
            config = f'partition-id={node} num-partitions={NODES} name="node{node}"'
            launcher.start(key.name, [*words, "--node-config", config])
        flwr = launcher.directory / "flwr"
        flwr.mkdir()
        (flwr / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{LOOPBACK}:{port}"\n'
            f"root-certificates = {json.dumps(str(home / keys.AUTHORITY))}\n"
        )
        words = [str(Path(sys.executable).parent / "flwr"), "run", str(PROJECT), "here", "--stream"]
        given = {"rounds": ROUNDS, "run-dir": str(out), "joining": 200, "deadline": 200}
        config = " ".join(f"{name}={json.dumps(value)}" for name, value in given.items())
        quiet = {"FLWR_HOME": str(flwr), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
        told = {"env": {**environment(tmp_path), **quiet}, "capture_output": True, "text": True, "timeout": 240}
        done = subprocess.run([*words, "-c", config], **told, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "round 2: loss" in done.stdout + done.stderr, done.stdout + done.stderr
    paths = {"PYTHONPATH": f"{environment(tmp_path)['PYTHONPATH']}:{PROJECT}"}
    words = [sys.executable, "-c", _SIMULATION, str(tmp_path / "simulated")]
    subprocess.run(words, env={**environment(tmp_path), **paths}, check=True, timeout=120)
    import jax

    deployed, simulated = (jax.tree.leaves(fm.Run.load(tmp_path / name).params) for name in ("run", "simulated"))
    for one, other in zip(deployed, simulated, strict=True):
        fact("a Flower project against a simulation, 2 rounds, 2 SuperNodes", float(np.abs(one - other).max()))
        np.testing.assert_allclose(one, other, atol=1e-5)
    assert left_over(tmp_path) == []
    assert listening(tmp_path / "logs") == set()
