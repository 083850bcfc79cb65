"""The two apps of a Flower project: what they ask of functions, and where a node's worker is."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fedmime as fm
from deploy.flower import echo
from deploy.flower.machine import ROOT
from fedmime.deploy.flower import client_app, server_app
from fedmime.errors import ConfigError

pytest.importorskip("flwr")


def placed(monkeypatch: pytest.MonkeyPatch, **context: Any) -> client_app.Place:
    """Which worker a project's app hands messages to."""
    seen: list[Any] = []
    monkeypatch.setattr(client_app, "relay", seen.append)
    client_app.client_app(data=echo.node, problem=echo.play, algorithm=echo.node)
    given = {"node_config": {}, "node_id": 255, "run_id": 7} | context
    return seen[0](SimpleNamespace(**given))


def test_functions_are_named_and_found_from_their_root(monkeypatch: pytest.MonkeyPatch) -> None:
    order = placed(monkeypatch, node_config={"name": "a", "partition-id": 3}).order
    module = echo.__name__
    assert order.arguments["functions"] == {
        "data": f"{module}:node", "problem": f"{module}:play", "algorithm": f"{module}:node",
    }  # fmt: skip
    assert order.path == (str(Path(echo.__file__).parents[module.count(".")]),)
    assert order.arguments["config"] == {"name": "a", "partition-id": 3}
    assert order.arguments["name"] == "a"


def test_a_worker_is_for_one_node_one_run_and_one_configuration(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    first = placed(monkeypatch)
    assert placed(monkeypatch) == first
    assert first.order.arguments["name"] == "node-255"
    assert first.directory.parent == tmp_path
    assert placed(monkeypatch, node_id=254).directory != first.directory
    assert placed(monkeypatch, run_id=8).order.identity() != first.order.identity()
    assert placed(monkeypatch, node_config={"partition-id": 1}).order.identity() != first.order.identity()


def test_functions_that_another_process_cannot_find() -> None:
    with pytest.raises(ConfigError, match="data must be a function at the top of a module, got"):
        client_app.client_app(data=lambda config: config, problem=echo.play, algorithm=echo.node)


def test_importing_a_project_does_not_start_jax() -> None:
    code = "import sys; from digits import client_app, server_app; print('jax' in sys.modules, 'flwr' in sys.modules)"
    paths = f"{ROOT / 'src'}:{ROOT / 'examples' / 'flower_project'}"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": paths}, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["False", "True"]


def test_a_runs_configuration_counts() -> None:
    config = {"rounds": 3, "cohort-size": 2, "run-dir": "", "deadline": 9.0, "something-else": 1}
    assert server_app._configured(config) == {"rounds": 3, "cohort_size": 2, "deadline": 9.0}


def test_public_names() -> None:
    assert fm.deploy.client_app is client_app.client_app
    assert fm.deploy.server_app is server_app.server_app
