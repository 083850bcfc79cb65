"""What a command works on: its task by name, or a built-in model on a store, and the directory named after it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from fedmime import named
from fedmime.errors import ConfigError
from fedmime.experiments.setting import ModelName, Setting, store_of


@dataclasses.dataclass(frozen=True)
class OnStore:
    """A built-in model on a store, instead of a task."""

    model: ModelName | None = None
    """With --data: this model instead of a task; shapes and classes follow from the store."""
    data: Path | None = None
    """With --model: a store of your own, from population.save or `fedmime data convert`."""


def task_of(task: str, on: OnStore) -> str:
    """The task that a command names, with absolute paths: by --task, or by --model and --data."""
    if on.model is None and on.data is None:
        return _found(task)
    for option, value in (("model", on.model), ("data", on.data)):
        if value is None:
            other = "data" if option == "model" else "model"
            raise ConfigError(f"{other}: --{other} needs --{option}, too: a built-in model on a store of your own")
    if task != Setting.task:
        raise ConfigError(f"task: give --task {task} or --model {on.model} with --data, not both")
    return _found(f"{on.model}@{on.data}")


def _found(task: str) -> str:
    if (on := store_of(task)) is not None:
        return f"{on[0]}@{Path(on[1]).absolute()}"
    return named.absolute(task)


def directory(*parts: str) -> Path:
    """Where results go by default: below `runs`, every part of the path safe as a name of a directory."""
    return Path("runs", *map(named.safe, parts))


def task_name(task: str) -> str:
    """What the task calls itself; the user's own file is loaded for it."""
    from fedmime.experiments import tasks

    return tasks.get(task).name
