"""A Flower project with Flower's own SuperLink, SuperNodes and `flwr run`, all on this machine."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.flower.machine import as_users_run_it, environment
from fedmime.deploy.flower import keys
from fedmime.deploy.flower.launcher import LOOPBACK, Launcher, free_ports, start_superlink


def learn(
    project: Path,
    nodes: int,
    rounds: int,
    home: Path,
    patch: pytest.MonkeyPatch,
    beside: Callable[[], None] = lambda: None,
) -> Path:
    """Run a project to its end, and give the run's directory.

    Args:
        project: its directory.
        nodes: of which each gets `partition-id`, `num-partitions` and a name.
        rounds: of the run.
        home: the directory of everything that is written.
        patch: for the environment of the processes.
        beside: called when the run has ended and its processes are still there.
    """
    as_users_run_it(patch, home)
    patch.setenv("XDG_STATE_HOME", str(home / "state"))
    patch.setenv("XDG_RUNTIME_DIR", str(home))
    out = home / "run"
    with Launcher(home / "logs") as launcher:
        server = launcher.directory / "server"
        keys.make_server(server, [LOOPBACK])
        port, *others = free_ports(1 + nodes)
        control = start_superlink(launcher, server, LOOPBACK, port, 1 << 24)
        for node, other in enumerate(others):
            key = keys.make_node(launcher.directory / "keys", f"node{node}")
            control.register(key.with_name(f"{key.name}.pub"))
            words = ["flower-supernode", "--root-certificates", str(server / keys.AUTHORITY)]
            words += ["--superlink", f"{LOOPBACK}:{port}", "--auth-supernode-private-key", str(key)]
            words += ["--host", LOOPBACK, "--port", str(other)]
            config = f'partition-id={node} num-partitions={nodes} name="node{node}"'
            launcher.start(key.name, [*words, "--node-config", config])
        flwr = launcher.directory / "flwr"
        flwr.mkdir()
        (flwr / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{LOOPBACK}:{port}"\n'
            f"root-certificates = {json.dumps(str(server / keys.AUTHORITY))}\n"
        )
        words = [str(Path(sys.executable).parent / "flwr"), "run", str(project), "here", "--stream"]
        given = {"rounds": rounds, "run-dir": str(out), "joining": 200, "deadline": 200}
        config = " ".join(f"{name}={json.dumps(value)}" for name, value in given.items())
        quiet = {"FLWR_HOME": str(flwr), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
        told = {"env": {**environment(home), **quiet}, "capture_output": True, "text": True, "timeout": 500}
        done = subprocess.run([*words, "-c", config], **told, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"round {rounds}: loss" in done.stdout + done.stderr, done.stdout + done.stderr
        beside()
    return out


def simulate(project: Path, program: str, home: Path) -> Path:
    """Run a program that imports the project, and give the directory that it was told to write a run to."""
    out = home / "simulated"
    paths = {"PYTHONPATH": f"{environment(home)['PYTHONPATH']}:{project}"}
    words = [sys.executable, "-c", program, str(out)]
    subprocess.run(words, env={**environment(home), **paths}, check=True, timeout=120)
    return out
