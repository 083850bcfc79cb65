"""Reports are made from recorded results alone."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.chart import draw
from benchmarks.data_section import parse
from benchmarks.heat import distance
from benchmarks.peer import Peer, PeerError
from benchmarks.tables import all_tables
from rich.console import Console

from benchmarks import environments, goals, report

ROOT = Path(__file__).parents[2]


def test_json_and_markdown(results, tmp_path):
    results["goals"] = goals.run(results)
    tables = all_tables(results)
    report.save(tmp_path, results, tables)
    assert report.load(tmp_path) == json.loads(json.dumps(results))
    text = (tmp_path / report.REPORT).read_text()
    assert "| fedmime | 0.1 / 0.05 | 0.1 / 0.05 |" in text
    assert "| FedAvg | pytorch | 350 | 350 | 0.97 | 3.5 | 7 | 1e-06, 2e-08 |" in text
    assert "no wheel" in text
    assert "it / died" in text
    assert all(line.count("|") == text.splitlines()[i - 1].count("|") for i, line in _continued(text))


def _continued(text):
    lines = text.splitlines()
    return [(i, line) for i, line in enumerate(lines) if i and line.startswith("|") and lines[i - 1].startswith("|")]


def test_tables_on_screen(results):
    results["goals"] = goals.run(results)
    console = Console(file=io.StringIO(), width=200)
    report.show(console, all_tables(results))
    shown = console.file.getvalue()
    assert "Goals:" in shown
    assert "not measured" in shown


def test_chart(results, tmp_path):
    draw(results["peers"], tmp_path / report.CHART)
    assert (tmp_path / report.CHART).read_bytes().startswith(b"\x89PNG")


def test_lines_of_the_data_benchmark():
    rows = parse("clients            342,477.000\nopen_ms   3.250  (target < 50: met)\nnot a figure\n")
    assert [row["value"] for row in rows] == [342477.0, 3.25]
    assert rows[1]["remark"] == "target < 50: met"


def test_distance_is_relative_to_the_movement():
    import numpy as np

    start, a, b = ({"w": np.full(4, v, np.float32)} for v in (0.0, 1.0, 1.5))
    assert distance(a, b, start) == {"relative": pytest.approx(0.5), "largest": pytest.approx(0.5)}


def test_pins_name_versions_and_no_addresses():
    for peer in environments.PEERS:
        lines = (ROOT / "benchmarks" / "peers" / f"{peer}.txt").read_text().split()
        assert lines
        assert all(line.count("==") == 1 and "/" not in line and "nvidia" not in line for line in lines)
    assert environments.main_versions("jax==0.5.3\nfedjax==0.0.17\nsix==1.0") == "fedjax 0.0.17, jax 0.5.3"


def test_an_environment_that_cannot_be_made_is_absent(tmp_path, monkeypatch):
    def fail(command, timeout=0):
        raise subprocess.CalledProcessError(1, command, stderr="WARNING: x\nERROR: No matching distribution for torch")

    monkeypatch.setattr(environments, "run", fail)
    (tmp_path / "pytorch.txt").write_text("torch==2.13.0\n")
    made = environments.ensure("pytorch", tmp_path / "envs", tmp_path)
    assert made.python is None
    assert made.absent == "ERROR: No matching distribution for torch"


def test_an_entrant_that_dies_is_an_error_and_leaves_nothing(tmp_path):
    with Peer("no_such_entrant", tmp_path, tmp_path / "log") as peer, pytest.raises(PeerError, match="no answer"):
        peer.ask(do="prepare", timeout=20)


def test_the_command(results, tmp_path):
    (tmp_path / report.RESULTS).write_text(json.dumps(results))
    words = [sys.executable, "-m", "benchmarks"]
    run = {"cwd": ROOT, "capture_output": True, "text": True, "timeout": 60, "check": True}
    assert "--quick" in subprocess.run([*words, "--help"], **run).stdout
    env = {**os.environ, "COLUMNS": "200"}
    done = subprocess.run([*words, "--only", "goals", "--out", str(tmp_path)], env=env, **run)
    assert "reached" in done.stdout
    assert report.load(tmp_path)["goals"]["reached"] > 0
    assert (tmp_path / report.CHART).is_file()


def test_simulate_against_the_commit_before_comes_first(results):
    rows = [{"name": "fedavg mlp, cpu", "unit": "ms", "ours": 60.0, "before": 80.0, "ratio": 0.75}]
    first = all_tables({**results, "simulate": {"before": "abc", "rows": rows}})[0]
    assert first.title.startswith("simulate")
    assert first.header[3] == "at abc"
    assert first.rows[0][-1] == "0.75"
