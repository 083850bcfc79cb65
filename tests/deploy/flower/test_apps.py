"""The two apps of a Flower project: what they ask of functions, and where a node's worker is."""

import contextlib
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fedmime as fm
from deploy.fleets import Meddling, frame
from deploy.flower import echo, masked_project
from deploy.flower.machine import ROOT
from fedmime.deploy.flower import client_app, grid, server_app
from fedmime.errors import ClusterError, ConfigError

pytest.importorskip("flwr")


FUNCTIONS: Mapping[str, Any] = {"data": echo.node, "problem": echo.play, "algorithm": echo.node}


def placed(
    monkeypatch: pytest.MonkeyPatch, functions: Mapping[str, Any] = FUNCTIONS, **context: Any
) -> client_app.Place:
    """Which worker a project's app hands messages to."""
    seen: list[Any] = []
    monkeypatch.setattr(client_app, "relay", seen.append)
    client_app.client_app(**functions)
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


class Project(Meddling):
    """The nodes that a project's workers would be, with a ServerApp's grid in front of them."""

    def __init__(self, placed_at: Callable[[int], client_app.Place]) -> None:
        orders = [placed_at(number).order for number in range(3)]
        super().__init__({number: order.build() for number, order in enumerate(orders)})


@pytest.mark.parametrize("asked", [True, False])
def test_a_projects_functions_turn_masks_on(asked: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its clients insist on them: a ServerApp that asks for none gets nothing."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", [*sys.path])  # to which an order adds
    given = {name: getattr(masked_project, name) for name in ("data", "problem", "algorithm", "aggregation", "secure")}
    project = Project(lambda number: placed(monkeypatch, given, node_config={"partition-id": number}, node_id=number))
    monkeypatch.setattr(grid, "GridTransport", lambda *_: project)
    monkeypatch.setattr(grid, "refuse_arrays", lambda: None)  # it would last
    del given["data"]
    others = {"rounds": 1, "cohort_size": 3, "joining": 0.3, "test": masked_project.test}
    app = server_app.server_app(**{**given, **others, "secure": given["secure"] if asked else None})
    with contextlib.nullcontext() if asked else pytest.raises(ClusterError, match="0 of 3 nodes joined"):
        app(None, SimpleNamespace(run_config={}))  # pyright: ignore[reportArgumentType]
    kinds = {frame(reply).kind for _, reply in project.replies if isinstance(reply, bytes)}
    assert kinds == ({"profile", "masked"} if asked else {"refusal"})


def test_an_algorithm_may_come_as_a_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The server's setting says which; computed by the reference back end, in three clients that bring only data."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", [*sys.path])
    given = {"data": masked_project.data, "problem": masked_project.problem, "backend": "reference"}
    project = Project(lambda number: placed(monkeypatch, given, node_config={"partition-id": number}, node_id=number))
    monkeypatch.setattr(grid, "GridTransport", lambda *_: project)
    monkeypatch.setattr(grid, "refuse_arrays", lambda: None)
    setting = {"task": "digits-logistic", "algorithm": "mime", "eta": 0.1}
    app = server_app.server_app(setting=setting, test=masked_project.test, cohort_size=3, joining=5.0)
    config = {"rounds": 2, "batch-size": 7, "run-dir": str(tmp_path / "run")}
    app(None, SimpleNamespace(run_config=config))  # pyright: ignore[reportArgumentType]
    history = fm.Run.load(tmp_path / "run").history
    assert history["clients"].tolist() == [3, 3]
    told = [frame(request).fields for _, request in project.requests if frame(request).kind == "hello"]
    assert {fields["batch_size"] for fields in told} == {7}
    own = server_app.server_app(masked_project.algorithm, masked_project.problem, rounds=1, cohort_size=3, joining=0.3)
    with pytest.raises(ClusterError, match="0 of 3 nodes joined"):  # its algorithm has no name
        own(None, SimpleNamespace(run_config={}))  # pyright: ignore[reportArgumentType]
    words = frame(project.replies[-1][1]).fields["words"]  # pyright: ignore[reportArgumentType]
    assert words == "this node brings no algorithm, and the server names none"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"algorithm": None, "aggregation": echo.node}, "aggregation goes with an algorithm, which is missing"),
        ({"backend": "ray"}, "backend must be 'local' or 'reference', got 'ray'"),
    ],
)
def test_arguments_of_a_client_that_do_not_fit(changes: Mapping[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        client_app.client_app(**{**FUNCTIONS, **changes})


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"algorithm": echo.node},
        {"setting": {}, "problem": echo.node},
        {"setting": {}, "algorithm": echo.node, "problem": echo.node},
        {"setting": {}, "aggregation": echo.node},
    ],
)
def test_arguments_of_a_server_that_do_not_fit(given: Mapping[str, Any]) -> None:
    with pytest.raises(ConfigError, match="give algorithm and problem, or a setting in place of both"):
        server_app.server_app(**given)


@pytest.mark.parametrize("name", ["../other", "/etc", "a/b", ".hidden", "", "a" * 65])
def test_a_name_is_no_path(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="a node's name has letters, digits"):
        placed(monkeypatch, node_config={"name": name})


def test_functions_that_another_process_cannot_find() -> None:
    with pytest.raises(ConfigError, match="data must be a function at the top of a module, got"):
        client_app.client_app(data=lambda config: config, problem=echo.play, algorithm=echo.node)


def test_a_client_in_pytorch_is_named_and_not_imported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its worker calls the function with the node's configuration, a name and a place for what it keeps."""
    package = tmp_path / "ours"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "task.py").write_text("raise AssertionError")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    seen: list[Any] = []
    monkeypatch.setattr(client_app, "relay", seen.append)
    fm.deploy.torch_client_app("ours.task:client")
    given = {"node_id": 255, "run_id": 7}
    order, _ = seen[0](SimpleNamespace(node_config={"name": "a", "partition-id": 3}, **given))
    state = str(tmp_path / "state" / "fedmime" / "nodes" / "a")
    assert order.arguments["config"] == {"name": "a", "state": state, "partition-id": 3}
    assert (order.arguments["function"], order.path) == ("ours.task:client", (str(tmp_path),))
    assert seen[0](SimpleNamespace(node_config={}, **given)).order.arguments["config"]["name"] == "node-255"


@pytest.mark.parametrize(
    ("client", "words"),
    [
        (echo.node, "client must be the name of a function, 'module:function', got <function node"),
        ("task", "client must be the name of a function, 'module:function', got 'task'"),
        ("task:1", "got 'task:1'"),
        ("nowhere.task:client", "client names the module 'nowhere.task', and there is none"),
    ],
    ids=["a function", "a module", "no name", "no module"],
)
def test_names_that_no_client_has(client: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        fm.deploy.torch_client_app(client)


@pytest.mark.parametrize(("project", "package"), [("flower_project", "digits"), ("torch_project", "torchdigits")])
def test_importing_a_project_starts_neither_jax_nor_pytorch(project: str, package: str) -> None:
    code = f"import sys; from {package} import client_app, server_app; "
    code += "print(*(name in sys.modules for name in ('jax', 'torch', 'flwr')))"
    paths = f"{ROOT / 'src'}:{ROOT / 'examples' / project}"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": paths}, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["False", "False", "True"]


def test_a_runs_configuration_counts() -> None:
    config = {"rounds": 3, "cohort-size": 2, "run-dir": "", "deadline": 9.0, "something-else": 1}
    assert server_app._configured(config) == {"rounds": 3, "cohort_size": 2, "deadline": 9.0}


def test_public_names() -> None:
    assert fm.deploy.client_app is client_app.client_app
    assert fm.deploy.torch_client_app is client_app.torch_client_app
    assert fm.deploy.server_app is server_app.server_app
