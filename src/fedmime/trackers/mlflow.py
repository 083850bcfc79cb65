"""MLflow: one MLflow run for each run."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedmime.trackers.callback import Callback, Mark, Started, numbers, package

_MOST_METRICS, _MOST_PARAMS, _LONGEST = 1000, 100, 6000  # of one request, and characters of a parameter
_STATUS = {"done": "FINISHED", "preempted": "KILLED", "failed": "FAILED"}
_ROUND = "round"  # a metric of every row, by which a run that goes on sees how far MLflow's record reaches


class Mlflow(Callback):
    """Logs every row at the step of its round; `mlflow` explains the arguments.

    It uses MLflow's client, and so neither starts nor ends the active run of the process.
    """

    name = "mlflow"

    def __init__(self, experiment: str, uri: str | None, run_name: str | None, tags: Mapping[str, str]) -> None:
        self._tracking, self._entities = package(self.name, "mlflow.tracking"), package(self.name, "mlflow.entities")
        self._experiment, self._uri, self._run_name, self._tags = experiment, uri, run_name, dict(tags)
        self._client: Any = None
        self._id = ""

    def start(self, run: Started) -> Mark:
        """Create an MLflow run with the configuration as its parameters, or go on with the one that was broken off."""
        self._client = self._tracking.MlflowClient(tracking_uri=self._uri)
        if run.mark is not None:
            self._id = run.mark.id
            self._client.update_run(self._id, status="RUNNING")
            steps = [point.step for point in self._client.get_metric_history(self._id, _ROUND)]
            return Mark(self._id, max(steps, default=0))
        found = self._client.get_experiment_by_name(self._experiment)
        home = self._client.create_experiment(self._experiment) if found is None else found.experiment_id
        self._id = self._client.create_run(home, run_name=self._run_name or run.name, tags=self._tags).info.run_id
        params = [self._entities.Param(_name(key), str(value)[:_LONGEST]) for key, value in _flat(run.config)]
        for k in range(0, len(params), _MOST_PARAMS):
            self._client.log_batch(self._id, params=params[k : k + _MOST_PARAMS])
        return Mark(self._id, 0)

    def rounds(self, rows: Sequence[Mapping[str, Any]]) -> None:
        now, metrics = int(1000 * time.time()), []
        for row in rows:
            step, figures = row["round"] + 1, numbers(row) | {_ROUND: float(row["round"])}
            metrics += [self._entities.Metric(_name(key), value, now, step) for key, value in figures.items()]
        for k in range(0, len(metrics), _MOST_METRICS):
            self._client.log_batch(self._id, metrics=metrics[k : k + _MOST_METRICS])

    def end(self, state: str, reason: str | None) -> None:
        if reason is not None:
            self._client.set_tag(self._id, "reason", reason[:_LONGEST])
        self._client.set_terminated(self._id, _STATUS[state])


def mlflow(
    experiment: str | None = None,
    uri: str | None = None,
    run_name: str | None = None,
    tags: Mapping[str, str] | None = None,
) -> Callback:
    """A callback that logs a run to MLflow, the extra `fedmime[mlflow]`.

    Every number of `metrics.jsonl` is a metric at step round + 1, as in TensorBoard, and every field of the
    configuration a parameter. A run with a directory that goes on continues the same MLflow run, and no step is logged
    twice.

    Args:
        experiment: the MLflow experiment, created if missing; by default `MLFLOW_EXPERIMENT_NAME` of the
            environment, else "fedmime".
        uri: the tracking server or store, such as "http://127.0.0.1:5000" or "sqlite:///mlflow.db"; by default MLflow's
            own choice, `MLFLOW_TRACKING_URI` of the environment or `mlflow.db` in the working directory.
        run_name: by default the name of the run directory, or of the algorithm.
        tags: tags of the MLflow run.
    """
    return Mlflow(experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "fedmime", uri, run_name, tags or {})


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested dictionaries, with keys like `algorithm.eta`."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _name(key: str) -> str:
    """A name that MLflow accepts; other characters become underscores."""
    return re.sub(r"[^\w\-. :/]", "_", key)
