"""Whether the figures of several runs can stand side by side: the same data, the same task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedmime.report.common import configurations
from fedmime.report.recorded import Recorded
from fedmime.report.words import listed, short

_DATA = ("name", "clients", "examples", "test_examples", "sha256")
_WORDS = {
    "clients": "{} clients",
    "examples": "{} examples",
    "test_examples": "{} test examples",
    "sha256": "sha256 {:.12}",
}  # names and shapes speak for themselves
_MOST_NAMED = 3  # runs of one kind in a sentence


def warning(runs: Sequence[Recorded]) -> str:
    """A sentence that says why figures cannot be compared; empty where they can, as far as the runs tell."""
    if groups := _apart(runs, [_data(run) for run in runs]):
        return f"These runs are on different data ({groups}): their figures cannot be compared."
    if groups := _apart(runs, [_task(config) for config in configurations(runs)]):
        return f"These runs are of different tasks ({groups}): their figures do not compare the methods."
    return ""


def _data(run: Recorded) -> dict[str, str]:
    return {name: short(run.data[name]) for name in _DATA if run.data.get(name) is not None}


def _task(config: Mapping[str, Any]) -> dict[str, str]:
    """The task of the command line, or the problem that the library was given."""
    task, problem = config.get("task"), config.get("problem")
    if task is not None:
        return {"task": short(task)}
    if not isinstance(problem, Mapping):
        return {}
    arrays = problem.get("arrays")
    shapes = {"arrays": short(list(arrays.values()))} if isinstance(arrays, Mapping) else {}
    return {"task": short(problem.get("name")), **shapes}


def _apart(runs: Sequence[Recorded], facts: Sequence[Mapping[str, str]]) -> str:
    """The runs by what tells them apart, `label: fact; label and label: fact`; empty if nothing that is known does."""
    names = dict.fromkeys(name for fact in facts for name in fact)
    told = next((name for name in names if len({fact[name] for fact in facts if name in fact}) > 1), None)
    if told is None:
        return ""
    owners: dict[str, list[str]] = {}
    for run, fact in zip(runs, facts, strict=True):
        value = fact.get(told, "not recorded")
        owners.setdefault(_WORDS.get(told, "{}").format(value), []).append(run.label)
    return "; ".join(f"{_some(labels)}: {value}" for value, labels in owners.items())


def _some(labels: Sequence[str]) -> str:
    more = len(labels) - _MOST_NAMED
    return listed([*labels[:_MOST_NAMED], f"{more} more"] if more > 0 else labels)
