"""Callbacks of a run: trackers of experiments, a progress line, or your own.

`fm.simulate(…, callbacks=[fm.trackers.wandb(project="mime"), fm.trackers.mlflow(experiment="mime")])` sends the rows of
`metrics.jsonl` as they are written. A run that goes on continues the same tracked run, and a callback that fails never
ends a run.
"""

from fedmime.trackers.callback import Callback, Mark, Started
from fedmime.trackers.mlflow import mlflow
from fedmime.trackers.progress import progress
from fedmime.trackers.wandb import wandb

__all__ = ["Callback", "Mark", "Started", "mlflow", "progress", "wandb"]
