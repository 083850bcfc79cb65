"""`fedmime deploy local`: one command, TLS and keys on, and nothing left behind."""

import json
from pathlib import Path

import pytest

from deploy.flower.machine import left_over, listening, program

pytest.importorskip("flwr")


def test_a_rehearsal_on_one_machine(tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["deploy", "local", "--nodes", 2, "--task", "digits-two-labels", "--algorithm", "fedavg", "--rounds", 2]
    done = program([*words, "--out", out, "--json"], 200, tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["method"], told["rounds"], told["abandoned"]) == ("FedAvg", 2, 0)
    assert told["accuracy"] > 0.1
    assert "FedAvg: round 2/2" in done.stderr
    assert sorted(path.name for path in (out / "logs").iterdir()) == [
        "node_0.log", "node_1.log", "nodes.log", "superlink.log",
    ]  # fmt: skip
    assert left_over(tmp_path) == []
    assert listening(out / "logs") == set()


def test_what_only_clients_know_is_refused_in_one_line(tmp_path: Path) -> None:
    """The ServerApp refuses it, in a process of Flower's; the error is told as if it had been raised here."""
    words = ["deploy", "local", "--nodes", 2, "--task", "annotators", "--rounds", 2, "--out", tmp_path / "run"]
    done = program(words, 200, tmp_path)
    assert done.returncode == 2
    assert done.stderr == "fedmime: deploy: target_gap=0.001 needs the training loss, which only clients know\n"
    assert left_over(tmp_path) == []
