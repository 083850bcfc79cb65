"""Options that several verbs share, and how they are read."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from fedmime.cli.naming import OnStore, task_of
from fedmime.errors import CheckpointError, ConfigError
from fedmime.experiments.setting import Setting, TrackerName, located, read

BackendName = Literal["local", "reference", "ray"]
"""The back ends that `open_backend` opens, for verbs that accept all of them."""


@dataclasses.dataclass(frozen=True)
class Saved(OnStore, Setting):
    """A setting, and how a run of it is saved and shown."""

    out: Path | None = None
    """The run's directory; by default runs/TASK/METHOD-seedN."""
    data_dir: Path | None = None
    """Where published files are kept; by default $FEDMIME_DATA_DIR or the user's cache."""
    config: Path | None = None
    """A YAML file with any of these fields; what the command line says counts more."""
    checkpoint_every: int = 50
    """Rounds between checkpoints."""
    keep: int = 3
    """Checkpoints that stay, beside the best."""
    fresh: bool = False
    """Remove an earlier run in the directory instead of going on with it."""
    json: bool = False
    """Print the result as JSON."""
    quiet: bool = False
    """No progress."""


@dataclasses.dataclass(frozen=True)
class Asked(Saved):
    """What surrounds a simulated run."""

    backend: BackendName = "local"
    """Where clients run: compiled on this machine's devices, eagerly one after another, to debug, or on Ray."""
    workers: int = 2
    """Worker processes of the back end on Ray."""
    ray_address: str | None = None
    """A running Ray cluster to join, such as 10.0.0.1:6379; by default Ray is started here for the run."""
    dry_run: bool = False
    """Print the plan and its cost, and stop."""


@dataclasses.dataclass(frozen=True)
class Warm(Asked):
    """A simulated run that may start from the model of another."""

    init: Path | None = None
    """Start from the last model of this run directory, or from a model in it, such as RUN/best.safetensors."""


@dataclasses.dataclass(frozen=True)
class Tracked(Warm):
    """A simulated run with a directory of its own, which trackers can follow."""

    track: tuple[TrackerName, ...] = ()
    """Log the run to W&B or MLflow, too; resume continues the same tracked run."""
    track_project: str | None = None
    """The W&B project or MLflow experiment; by default the one that their environment variables name, else fedmime."""


def from_file(kind: type[Any], words: Sequence[str]) -> Any:
    """The defaults of a verb: its own, or those of the file that --config names."""
    for i, word in enumerate(words):
        name, _, value = word.partition("=")
        if name == "--config":
            if not value and i + 1 == len(words):
                raise ConfigError("config: --config needs the path of a YAML file")
            return read(Path(value or words[i + 1]), kind())
    return kind()


def setting_of(asked: Setting) -> Setting:
    """The setting alone, without what surrounds it; files and stores that it names have absolute paths."""
    found = Setting(**{field.name: getattr(asked, field.name) for field in dataclasses.fields(Setting)})
    task = task_of(found.task, asked) if isinstance(asked, OnStore) else found.task
    return located(dataclasses.replace(found, task=task))


def require_backend(backend: str, *accepted: str) -> None:
    """Refuse a back end that a verb cannot use, before anything starts."""
    if backend not in accepted:
        names = " or ".join(map(repr, accepted))
        raise ConfigError(f"backend: {backend!r} is not available here in this version; accepted is {names}")


@contextlib.contextmanager
def open_backend(backend: str, workers: int, ray_address: str | None) -> Iterator[Any]:
    """What `simulate` takes for a back end. On Ray, all runs in the block share workers, which the first one starts."""
    if backend != "ray":
        yield backend
        return
    from fedmime import backends

    with backends.ray(workers, ray_address) as found:
        yield found


def open_trackers(names: Sequence[str], project: str | None) -> list[Any]:
    """The callbacks that --track names; `ConfigError` if a tracker's package is missing."""
    from fedmime import trackers

    return [{"wandb": trackers.wandb, "mlflow": trackers.mlflow}[name](project) for name in names]


def recorded_config(run: Path) -> dict[str, Any]:
    """What a run directory says was asked for."""
    from fedmime.runs.yaml_file import read_mapping

    file = run / "config.yaml"
    if not file.is_file():
        raise CheckpointError(f"{str(run)!r} holds no run: there is no config.yaml")
    try:
        return read_mapping(file)
    except ValueError as error:
        raise CheckpointError(f"{str(file)!r} is damaged: {error}") from None
