"""What runs were asked to do and where they ran: what differs between them apart from what they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedmime import named
from fedmime.report.common import configurations
from fedmime.report.recorded import Recorded
from fedmime.report.words import NOTHING, megabytes, short

_SAID_ELSEWHERE = ("label",)
_ENVIRONMENT = {"fedmime": "fedmime", "git": "git revision", "python": "Python", "jax": "JAX", "numpy": "NumPy"}
_DATA = {
    "name": "data set",
    "sha256": "data sha256",
    "clients": "clients",
    "examples": "training examples",
    "test_examples": "test examples",
}


def flat(config: Mapping[str, Any], before: str = "") -> dict[str, str]:
    """A nested mapping as text under dotted names."""
    found: dict[str, str] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{before}{name}.")
        else:
            found[f"{before}{name}"] = short(value)
    return found


def _settings(runs: Sequence[Recorded]) -> dict[str, list[str]]:
    """Each setting's value in every run."""
    each = [_named(flat(config)) for config in configurations(runs)]
    names = dict.fromkeys(name for found in each for name in found if name not in _SAID_ELSEWHERE)
    return {name: [found.get(name, NOTHING) for found in each] for name in names}


def _named(found: Mapping[str, str]) -> dict[str, str]:
    """The kind of a thing stands for the thing: `algorithm`, not `algorithm.kind`."""
    return {name.removesuffix(".kind"): value for name, value in found.items()}


def differing(runs: Sequence[Recorded]) -> dict[str, list[str]]:
    """The settings that are not the same in all runs."""
    return {name: values for name, values in _settings(runs).items() if len(set(values)) > 1}


def shared(runs: Sequence[Recorded]) -> dict[str, str]:
    """The settings that are the same in all runs."""
    return {name: values[0] for name, values in _settings(runs).items() if len(set(values)) == 1}


def provenance(runs: Sequence[Recorded]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Versions, machine, data and workers: each fact with its value, or its values with the runs they belong to."""
    facts = []
    for run in runs:
        versions = {word: run.environment.get(name) for name, word in _ENVIRONMENT.items()}
        rest = {name: value for name, value in run.environment.items() if name not in (*_ENVIRONMENT, "time")}
        data = {word: run.data.get(name) for name, word in _DATA.items()}
        started = {"started": run.environment.get("time")}
        place = {"directory": None if run.path is None else run.path.resolve().name}
        facts.append(
            {
                name: _fact(value)
                for name, value in (versions | flat(rest) | data | _workers(run) | started | place).items()
            }
        )
    found = []
    for name in dict.fromkeys(name for fact in facts for name in fact):
        owners: dict[str, list[str]] = {}
        for run, fact in zip(runs, facts, strict=True):
            owners.setdefault(fact.get(name, NOTHING), []).append(run.label)
        told = [(value, ", ".join(labels) if len(owners) > 1 else "") for value, labels in owners.items()]
        if told != [(NOTHING, "")]:
            found.append((name, told))
    return found


def _workers(run: Recorded) -> dict[str, Any]:
    """What a run on Ray says of its workers; its first and last rounds may have been elsewhere."""
    used = run.series("workers")[1]
    if not len(used):
        return {}
    fewest, most = int(used.min()), int(used.max())
    sent = {way: run.series(f"bytes_{way}")[1] for way in ("broadcast", "gathered")}
    return {
        "Ray workers": most if fewest == most else f"{fewest} to {most}",
        "Ray workers lost": int(run.series("workers_lost")[1].sum()),
        **{f"Ray, {way} a round": f"{megabytes(np.median(each))} MB" for way, each in sent.items() if len(each)},
    }


def _fact(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else short(value)


def commands(runs: Sequence[Recorded]) -> list[tuple[str, str]]:
    """The command lines with the runs that they started."""
    owners: dict[str, list[str]] = {}
    for run in runs:
        if run.command:
            owners.setdefault(run.command, []).append(run.label)
    return [(", ".join(labels), command) for command, labels in owners.items()]


def _scheduled(run: Recorded, ours: str, inner: str) -> Any:
    """A setting under the name of the command line, or of the library."""
    schedule = run.config.get("schedule")
    return run.config.get(ours, schedule.get(inner) if isinstance(schedule, Mapping) else None)


def _task(run: Recorded) -> str | None:
    """The name of what a run learns; of a task of the user's own, the name without the path of its file."""
    task = run.config.get("task")
    return run.data.get("name") if task is None else named.short(str(task))


def about(runs: Sequence[Recorded]) -> str:
    """What the runs have in common, in a line."""
    said = []
    for words, values in (
        ("{}", [_task(run) for run in runs]),
        ("{} clients", [run.data.get("clients") for run in runs]),
        ("{} rounds", [run.status.get("rounds") for run in runs]),
        ("{} clients a round", [_scheduled(run, "cohort", "cohort_size") for run in runs]),
        ("seed {}", [_scheduled(run, "seed", "seed") for run in runs]),
    ):
        found = {_fact(value) for value in values if value is not None}
        if len(found) == 1:
            said.append(words.format(found.pop()))
    return " · ".join(said)
