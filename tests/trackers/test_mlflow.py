"""What MLflow has of a run is what its history has, once, also if the run was broken off."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import fedmime as fm
from trackers.small import ROUNDS, break_off, simulate, written

pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")  # of SQLAlchemy 2.1, by MLflow


@pytest.fixture(autouse=True)
def _private(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")


def _runs(store: str, experiment: str) -> list[Any]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=store)
    found = client.get_experiment_by_name(experiment)
    assert found is not None
    return client.search_runs([found.experiment_id])


def _points(store: str, run: Any) -> list[tuple[int, str, float]]:
    """Every point of every metric: step, name and value."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=store)
    names = [name for name in run.data.metrics if name != "round"]
    return [(p.step, name, p.value) for name in names for p in client.get_metric_history(run.info.run_id, name)]


def _listed(rows: Mapping[int, Mapping[str, float]]) -> list[tuple[int, str, float]]:
    return sorted((step, name, value) for step, row in rows.items() for name, value in row.items())


def test_a_run_that_goes_on_is_the_same_run_and_has_every_number_once(store: str, tmp_path: Path) -> None:
    experiment = uuid.uuid4().hex
    tracker = fm.trackers.mlflow(experiment, store, tags={"who": "me"})
    break_off(tmp_path / "mine", tracker)
    (run,) = _runs(store, experiment)
    assert (run.info.status, run.data.tags["reason"]) == ("FAILED", "RuntimeError: broken off")
    assert {step for step, *_ in _points(store, run)} == {1, 2, 3}
    (tmp_path / "mine" / "tracked" / "mlflow.json").write_text(f'{{"id": "{run.info.run_id}", "rounds": 2}}')
    simulate(tmp_path / "mine", tracker)  # the process was killed before it wrote that it had told round 3
    (run,) = _runs(store, experiment)
    assert (run.info.run_name, run.info.status, run.data.tags["who"]) == ("mine", "FINISHED", "me")
    assert sorted(_points(store, run)) == _listed(written(tmp_path / "mine"))
    assert run.data.params["algorithm.eta"] == "0.1"


def test_names_and_values_that_mlflow_refuses_are_changed(store: str, tmp_path: Path) -> None:
    experiment = uuid.uuid4().hex
    config = {"top@1": "x" * 10_000, **{f"field {i}": i for i in range(250)}}
    simulate(tmp_path, fm.trackers.mlflow(experiment, store, run_name="other"), rounds=1, config=config)
    (run,) = _runs(store, experiment)
    assert run.info.run_name == "other"
    assert run.data.params == {"top_1": "x" * 6000, **{f"field {i}": str(i) for i in range(250)}}


def test_a_server_that_cannot_be_reached_does_not_end_the_run(tmp_path: Path, caplog, monkeypatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    run = simulate(tmp_path / "run", fm.trackers.mlflow(uri="http://127.0.0.1:9"))  # nobody listens there
    assert len(run.history["round"]) == ROUNDS
    first, last = (record.getMessage() for record in caplog.records if record.name == "fedmime")
    assert first.startswith("mlflow failed after round 0 (")
    assert last.endswith(f"it lacks {ROUNDS} of {ROUNDS} rounds")


def test_a_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow.tracking", None)
    with pytest.raises(fm.ConfigError, match=r"^trackers.mlflow: mlflow is an extra: pip install 'fedmime\[mlflow\]'$"):
        fm.trackers.mlflow()
