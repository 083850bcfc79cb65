"""What a run is, in plain facts: two runs with the same facts compute the same numbers."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedmime.algorithms.algorithm import Algorithm, State, params
from fedmime.engine.schedule import Schedule
from fedmime.numbers import by_place

_SAMPLED = (0, 1, 2, 5, 10, 50, 100, 500, 1000)  # rounds by which a schedule is known


def describe(value: Any) -> Any:
    """A recipe, number, schedule or mapping as JSON can write it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: describe(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"kind": type(value).__name__, **fields}
    if isinstance(value, Mapping):
        return {str(name): describe(v) for name, v in value.items()}
    if isinstance(value, list | tuple):
        return [describe(v) for v in value]
    if callable(value):
        return {"kind": getattr(value, "__qualname__", type(value).__name__), "values": _values(value)}
    if getattr(value, "shape", None) == ():  # a number of NumPy or JAX
        value = np.asarray(value).item()
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)


def _values(function: Any) -> list[float] | None:
    """What a schedule gives; None for other functions."""
    try:
        return [float(function(t)) for t in _SAMPLED]
    except Exception:  # not a schedule: a user's own update rule, say
        return None


def shapes(params: Any) -> dict[str, str]:
    """The arrays of a model, by place."""
    return {place: f"{jnp.result_type(a).name}{list(jnp.shape(a))}" for place, a in by_place(params).items()}


def digest(facts: Mapping[str, Any]) -> str:
    """The sha256 of facts."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def digest_arrays(arrays: Iterable[Any]) -> str:
    """The sha256 of arrays, shapes and kinds included."""
    total = hashlib.sha256()
    for array in map(np.asarray, arrays):
        total.update(repr((array.dtype.str, array.shape)).encode())
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()


def differences(ours: Any, theirs: Any, name: str = "") -> list[str]:
    """Where two descriptions differ: `field: theirs -> ours`."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        found = []
        for key in dict.fromkeys([*theirs, *ours]):
            found += differences(ours.get(key), theirs.get(key), f"{name}.{key}" if name else key)
        return found
    return [] if ours == theirs else [f"{name}: {theirs!r} -> {ours!r}"]


def facts(
    algorithm: Algorithm, problem: Any, population: Any, schedule: Schedule, state: State, initial: Any
) -> dict[str, Any]:
    """What decides every number of a run but its length."""
    start = None if initial is None else digest_arrays(jax.tree.leaves(initial))
    return {
        "algorithm": describe(algorithm),
        "problem": {"name": problem.name, "arrays": shapes(params(state))},
        "data": data(population),
        "schedule": describe(schedule),
        "initial": start,
        "float64": bool(jax.config.jax_enable_x64),  # pyright: ignore[reportAttributeAccessIssue]
    }


def data(population: Any) -> dict[str, Any]:
    """Which data a run learns from."""
    test = population.test
    return {
        "name": getattr(population, "name", type(population).__name__),
        "sha256": population.identity() if hasattr(population, "identity") else None,
        "clients": len(population.sizes),
        "examples": int(np.sum(population.sizes)),
        "test_examples": 0 if test is None else len(next(iter(test.values()))),
    }
