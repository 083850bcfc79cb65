"""Weights & Biases: one W&B run for each run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from fedmime.trackers.callback import Callback, Mark, Started, numbers, package


class Wandb(Callback):
    """Logs every row at the step of its round; `wandb` explains the arguments."""

    name = "wandb"

    def __init__(self, project: str, options: Mapping[str, Any]) -> None:
        self._wandb = package(self.name, "wandb")
        self._project, self._options = project, dict(options)
        self._run: Any = None

    def start(self, run: Started) -> Mark:
        """Open a W&B run of its own, which leaves `wandb.run` alone, or the one that was broken off.

        W&B tells the last step of a run that it resumes. Offline it cannot know, and the mark says it.
        """
        given = {"name": run.name} | self._options
        if run.mark is not None:
            given["id"] = run.mark.id
        self._run = self._wandb.init(
            project=self._project, config=dict(run.config), resume="allow", reinit="create_new", **given
        )
        if self._run.offline:
            return Mark(self._run.id, 0 if run.mark is None else run.mark.rounds)
        return Mark(self._run.id, max(self._run.starting_step - 1, 0))  # steps count from 1

    def rounds(self, rows: Sequence[Mapping[str, Any]]) -> None:
        for row in rows:
            self._run.log(numbers(row), step=row["round"] + 1, commit=True)

    def end(self, state: str, reason: str | None) -> None:
        if reason is not None:
            self._run.summary["reason"] = reason
        self._run.finish(exit_code=0 if state == "done" else 1)


def wandb(project: str | None = None, **options: Any) -> Callback:
    """A callback that logs a run to Weights & Biases, the extra `fedmime[wandb]`.

    Every number of `metrics.jsonl` is logged at step round + 1, as in TensorBoard. A run with a directory that goes on
    continues the same W&B run, and no step is logged twice.

    Args:
        project: the W&B project; by default `WANDB_PROJECT` of the environment, else "fedmime".
        **options: further arguments of `wandb.init`, such as `entity`, `group`, `tags`, `dir` or `mode="offline"`.
    """
    return Wandb(project or os.environ.get("WANDB_PROJECT") or "fedmime", options)
