"""Metrics of a model on many examples, in large compiled batches that all devices share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from fedmime.engine.contract import check_metrics
from fedmime.engine.devices import AXIS, EVERYWHERE, SPREAD, everywhere, mesh

BATCH = 1024


class MetricProblem(Protocol):
    """What evaluation needs of a problem."""

    @property
    def metrics(self) -> Callable[[Any, Any], dict[str, tuple[jax.Array, jax.Array]]]: ...


@functools.partial(jax.jit, static_argnames=("problem", "on"))
def _measure(problem: MetricProblem, params: Any, batch: Any, on: Mesh) -> dict[str, tuple[jax.Array, jax.Array]]:
    """The metrics of every example; each device takes its part of the batch."""
    specs = {"mesh": on, "in_specs": (EVERYWHERE, SPREAD), "out_specs": SPREAD, "check_vma": False}
    return jax.shard_map(problem.metrics, **specs)(params, batch)


def evaluate(problem: MetricProblem, params: Any, columns: Mapping[str, np.ndarray]) -> dict[str, float]:
    """The weighted mean of every metric over all examples."""
    return evaluate_all(problem, params, [columns], len(next(iter(columns.values()))))


def evaluate_all(
    problem: MetricProblem, params: Any, parts: Iterable[Mapping[str, np.ndarray]], examples: int
) -> dict[str, float]:
    """The same over parts with so many examples together, of which few are in memory at a time."""
    found = _means(problem, params, parts, np.zeros(examples, int), 1)
    return {name: float(means[0]) for name, means in found.items()}


def evaluate_clients(
    problem: MetricProblem, params: Any, clients: Sequence[Mapping[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """Every metric of every client, NaN for one without examples. Batches span clients, so small ones cost no more."""
    sizes = [len(next(iter(columns.values()))) for columns in clients]
    return _means(problem, params, clients, np.repeat(np.arange(len(clients)), sizes), len(clients))


def _means(
    problem: MetricProblem, params: Any, parts: Iterable[Mapping[str, np.ndarray]], group: np.ndarray, groups: int
) -> dict[str, np.ndarray]:
    """Weighted means by group of examples, from batches of one shape; the last one repeats its final example."""
    sums: dict[str, np.ndarray] = {}
    done = 0
    on = _where(params)
    params = jax.device_put(params, everywhere(on))
    width = -(-min(BATCH, 1 << max(len(group) - 1, 0).bit_length()) // on.size) * on.size
    for batch in _batches(parts, width):
        n = len(next(iter(batch.values())))
        if not done:
            check_metrics(problem, params, batch)
        padded = {name: column[np.minimum(np.arange(width), n - 1)] for name, column in batch.items()}
        for name, (values, weights) in jax.device_get(_measure(problem, params, padded, on)).items():
            total = sums.setdefault(name, np.zeros((2, groups)))
            real = weights[:n].astype(np.float64)
            np.add.at(total[0], group[done : done + n], values[:n] * real)
            np.add.at(total[1], group[done : done + n], real)
        done += n
    with np.errstate(invalid="ignore"):
        return {name: value / weight for name, (value, weight) in sums.items()}


def _where(params: Any) -> Mesh:
    """The devices of a run whose model this is, else all."""
    placed = [getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(params)]
    meshes = [place.mesh for place in placed if isinstance(place, NamedSharding) and place.mesh.axis_names == (AXIS,)]
    return meshes[0] if meshes and isinstance(meshes[0], Mesh) else mesh()


def _batches(parts: Iterable[Mapping[str, np.ndarray]], width: int) -> Iterator[dict[str, np.ndarray]]:
    """The examples of all parts in order, `width` at a time; never more than that and one part in memory."""
    waiting: dict[str, np.ndarray] = {}
    for part in parts:
        waiting = {
            name: np.concatenate([waiting[name], column]) if waiting else column for name, column in part.items()
        }
        while len(next(iter(waiting.values()))) >= width:
            yield {name: column[:width] for name, column in waiting.items()}
            waiting = {name: column[width:] for name, column in waiting.items()}
    if waiting and len(next(iter(waiting.values()))):
        yield waiting
