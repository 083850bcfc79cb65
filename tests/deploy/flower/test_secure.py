"""Secure runs over a real network: the numbers of a simulation, masked sums only, and nodes that leave in mid-round."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedmime as fm
from deploy.flower.machine import as_users_run_it, environment, left_over, listening, program, simulated
from deploy.flower.running import TASK, Fault, deployed, equal, learn, process_of
from fedmime.deploy.secure.options import SecureSum
from fedmime.errors import ClusterError
from fedmime.experiments.setting import Messages

pytest.importorskip("flwr")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),  # longer than what a test starts may take
    pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning"),  # of flwr
]

MIME: dict[str, Any] = {"algorithm": "mime", "base": "momentum", "aggregation": Messages(clip=1.0, clip_gradient=10.0)}
WORDS = ["deploy", "local", "--task", TASK, "--algorithm", "mime", "--base", "momentum", "--secure"]
WORDS += ["--aggregation.clip", "1", "--aggregation.clip-gradient", "10"]
STAGES = 8  # masked requests of a round of Mime: two exchanges of four stages
INPUT = 2  # place of the stage in which messages are sent


@pytest.fixture(autouse=True)
def _as_users_run_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    as_users_run_it(monkeypatch, tmp_path)


def looped(deployed_run: Path, nodes: int, rounds: int, away: int = -1, at: int = 0) -> Path:
    """The directory of the same secure run in one process."""
    out = deployed_run.with_name(f"{deployed_run.name}-looped")
    words = [str(Path(__file__).with_name("looped.py")), deployed_run, out, nodes, rounds, away, at]
    told = {"env": environment(out.parent), "capture_output": True, "text": True, "timeout": 250}
    done = subprocess.run([sys.executable, *map(str, words)], **told, check=False)
    assert done.returncode == 0, done.stderr
    return out


def traces(tmp_path: Path) -> list[tuple[str, ...]]:
    """What nodes were sent and answered: round, kind, stage, kind of the reply."""
    return [tuple(line.split()) for file in tmp_path.glob("*.trace") for line in file.read_text().splitlines()]


def only_masks(tmp_path: Path) -> None:
    """Nobody was asked for, or has sent, a message in the clear."""
    assert {kind for _, kind, _, _ in traces(tmp_path)} == {"hello", "mask"}
    assert {reply for *_, reply in traces(tmp_path)} <= {"profile", "masked", "refusal"}


@pytest.mark.parametrize(("node", "nodes", "rounds"), [("fedmime", 5, 5), ("flower", 3, 1)])
def test_a_secure_run_learns_what_a_simulation_learns(node: str, nodes: int, rounds: int, tmp_path: Path, fact) -> None:
    out = tmp_path / "run"
    words = [*WORDS, "--node", node, "--nodes", nodes, "--rounds", rounds, "--secure-bits", 29, "--out", out, "--json"]
    done = program(words, 290, tmp_path)
    assert done.returncode == 0, done.stderr
    same = simulated(out, nodes, rounds)
    fact(f"secure Mime with 29 bits against simulated, {node} nodes", equal(out, same))
    run, simulation = fm.Run.load(out), fm.Run.load(same)
    for column in ("loss", "test_accuracy"):
        np.testing.assert_allclose(run.history[column], simulation.history[column], rtol=1e-4)
    assert run.history["clients"].tolist() == [nodes] * rounds
    assert json.loads(done.stdout)["bytes"] == run.history["bytes_total"][-1] != simulation.history["bytes_total"][-1]
    assert "masked sums" in json.loads((out / "env.json").read_text())["layout"]
    assert json.loads((out / "fleet.json").read_text())["secure"]["bits"] == 29
    assert left_over(tmp_path) == []
    assert listening(out / "logs") == set()
    in_the_clear = [word for word in WORDS if word != "--secure"]
    done = program([*in_the_clear, "--nodes", nodes, "--rounds", rounds + 1, "--out", out], 200, tmp_path)
    assert done.returncode == 5
    assert "which cannot go on with secure=None" in done.stderr


def test_a_node_that_is_killed_in_mid_round_is_recovered_from(tmp_path: Path, fact) -> None:
    """Its masks are in the others' messages, who have sent them when it is missed: their shares remove them."""
    at = STAGES + INPUT
    with deployed(tmp_path, {1: Fault("exit", at, True)}, nodes=5) as running:
        history = learn(running, tmp_path / "run", 2, 30.0, nodes=5, secure=SecureSum(), **MIME)
    assert history["clients"].tolist() == [5, 4]
    assert not history["abandoned"].any()
    fact("a secure run with a killed node against itself in one process",
         equal(tmp_path / "run", looped(tmp_path / "run", 5, 2, 1, at)))  # fmt: skip
    only_masks(tmp_path)


def test_below_the_threshold_a_round_is_abandoned_and_nothing_is_revealed(tmp_path: Path, fact) -> None:
    """The node is started anew; it can come back when it has missed its signs of life, and the next round is sound."""
    at = STAGES + INPUT
    with deployed(tmp_path, {2: Fault("exit", at, True)}) as running:
        history = learn(running, tmp_path / "run", 3, 150.0, secure=SecureSum(), **MIME)
    assert history["abandoned"].astype(int).tolist() == [0, 1, 0]
    assert history["clients"].tolist()[2] == 3
    gap = equal(tmp_path / "run", looped(tmp_path / "run", 3, 3, 2, at))
    fact("a secure run with an abandoned round against itself in one process", gap)
    only_masks(tmp_path)
    stages = {number: {stage for round_, _, stage, _ in traces(tmp_path) if round_ == number} for number in "12"}
    assert stages == {"1": {"keys", "shares", "input"}, "2": {"keys", "shares", "input", "reveal"}}
    assert "round 1 has no sum: 2 messages came, the run needs 3" in (tmp_path / "run" / "log.txt").read_text()


def test_a_server_that_is_killed_in_mid_round_goes_on_exactly(tmp_path: Path) -> None:
    """What it asks for once more was perhaps revealed before, over the same clients: they answer the same."""

    def on_event(event: Any) -> None:
        if event["round"] == 0:
            os.kill(process_of(running, "flwr-serverapp"), signal.SIGKILL)

    with deployed(tmp_path) as running:
        with pytest.raises(ClusterError, match="has ended suddenly"):
            learn(running, tmp_path / "run", 3, on_event=on_event, secure=SecureSum(), **MIME)
        history = learn(running, tmp_path / "run", 3, secure=SecureSum(), **MIME)
    assert history["round"].tolist() == [0, 1, 2]
    assert not history["abandoned"].any()
    equal(tmp_path / "run", looped(tmp_path / "run", 3, 3))
    only_masks(tmp_path)


def test_a_server_without_masks_gets_nothing_from_clients_that_insist(tmp_path: Path) -> None:
    with deployed(tmp_path, insists=SecureSum()) as running, pytest.raises(ClusterError, match="0 of 3 nodes joined"):
        learn(running, tmp_path / "run", 1, joining=15.0, **MIME)
    assert {(kind, reply) for _, kind, _, reply in traces(tmp_path)} == {("hello", "refusal")}
    assert "this client sends nothing without masks" in (tmp_path / "logs" / "node_0.log").read_text()
