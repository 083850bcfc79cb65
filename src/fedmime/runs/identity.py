"""The identity of a run in plain facts: two runs with the same facts compute the same numbers.

The facts are written to `identity.json` and compared when a run is resumed, so that a run is never continued with
another algorithm, other data or another seed. Their digest marks checkpoints and exported models.
"""

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
from fedmime.vector import by_place

_SAMPLED = (0, 1, 2, 5, 10, 50, 100, 500, 1000)  # rounds at which schedules are compared


def describe(value: Any) -> Any:
    """A value as JSON can write it: recipes and other dataclasses as dictionaries, schedules by their values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: describe(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"kind": type(value).__name__, **fields}
    if isinstance(value, Mapping):
        return {str(name): describe(v) for name, v in value.items()}
    if isinstance(value, list | tuple):
        return [describe(v) for v in value]
    if callable(value):
        return {"kind": getattr(value, "__qualname__", type(value).__name__), "values": _values(value)}
    if getattr(value, "shape", None) == ():  # a scalar of NumPy or JAX
        value = np.asarray(value).item()
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)


def _values(function: Any) -> list[float] | None:
    """The values of a schedule at the rounds `_SAMPLED`; None for a function that is not a schedule.

    Functions cannot be compared. Two schedules that agree at all of these rounds are taken for equal.
    """
    try:
        return [float(function(t)) for t in _SAMPLED]
    except Exception:  # not a schedule but, for example, a user's own update rule
        return None


def shapes(params: Any) -> dict[str, str]:
    """The type and shape of every array of a model, by place, such as `{"dense0.w": "float32[62, 784]"}`."""
    return {place: f"{jnp.result_type(a).name}{list(jnp.shape(a))}" for place, a in by_place(params).items()}


def digest(facts: Mapping[str, Any]) -> str:
    """The SHA-256 digest of facts, independent of the order of their keys."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def digest_arrays(arrays: Iterable[Any]) -> str:
    """The SHA-256 digest of arrays, their shapes and types included."""
    total = hashlib.sha256()
    for array in map(np.asarray, arrays):
        total.update(repr((array.dtype.str, array.shape)).encode())
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()


def differences(ours: Any, theirs: Any, name: str = "") -> list[str]:
    """The fields in which two descriptions differ, each as `field: theirs -> ours`.

    Args:
        ours: the description of the present run.
        theirs: the description found in a run directory.
        name: path of the field that is compared, for the recursion.
    """
    if isinstance(ours, list) and isinstance(theirs, list):
        ours, theirs = dict(enumerate(ours)), dict(enumerate(theirs))
    if isinstance(ours, dict) and isinstance(theirs, dict):
        found = []
        for key in dict.fromkeys([*theirs, *ours]):
            found += differences(ours.get(key), theirs.get(key), f"{name}.{key}" if name else str(key))
        return found
    return [] if ours == theirs else [f"{name}: {theirs!r} -> {ours!r}"]


def facts(
    algorithm: Algorithm, problem: Any, population: Any, schedule: Any, state: State, initial: Any
) -> dict[str, Any]:
    """All that decides the numbers of a run, except its length: a run may be continued for more rounds.

    Args:
        state: the state before the first round, of which the shapes of the model are recorded.
        initial: the model that the caller gave to start from, or None; its content is recorded as a digest.
    """
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
    """A description of the population: its name, the digest of its content where it has one, and its sizes."""
    test = population.test
    return {
        "name": getattr(population, "name", type(population).__name__),
        "sha256": population.identity() if hasattr(population, "identity") else None,
        "clients": len(population.sizes),
        "examples": int(np.sum(population.sizes)),
        "test_examples": 0 if test is None else len(next(iter(test.values()))),
    }
