"""What a run will take, before it is run: clients, steps, bytes, time."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedmime.aggregation import communication
from fedmime.experiments.train import Prepared

_TRIALS = 5


@dataclasses.dataclass(frozen=True)
class Plan:
    """The cost of a run, a round where not said otherwise; steps, examples and seconds are expected ones."""

    method: str
    clients: int
    cohort: int
    rounds: int
    gradient_rounds: int
    examples: float
    local_steps: float
    parameters: int
    model_bytes: int
    bytes_down: int
    bytes_up: int
    total_bytes: int
    seconds: float
    total_seconds: float


def plan(prepared: Prepared) -> Plan:
    """Count what can be counted and time one gradient of one mini-batch for the rest."""
    s = prepared.setting
    assert s.cohort is not None
    assert s.rounds is not None
    model = prepared.problem.init(jax.random.key(0))
    sizes = prepared.population.sizes[prepared.population.sizes > 0]
    trainers = s.cohort // 2 if s.split else s.cohort
    batch = np.maximum(np.minimum(s.batch or sizes.max(), sizes), 1)
    each = np.full(len(sizes), float(s.steps)) if s.steps else np.ceil(sizes / batch) * (s.epochs or 1)
    steps = trainers * float(each.mean()) if prepared.algorithm.local_steps else 0.0
    cost = communication.cost(prepared.algorithm, model, prepared.aggregation)
    down = trainers * cost.update.down + (trainers * cost.gradient.down if cost.gradient else 0)
    up = trainers * cost.update.up + (trainers * cost.gradient.up if cost.gradient else 0)
    if prepared.algorithm.pooled:
        down = up = 0
    gradient = _seconds_of_a_gradient(prepared, model, int(batch.max()))
    examples = s.cohort * float(sizes.mean())
    server = jax.eval_shape(prepared.algorithm.init, model).server
    sweeps = len(prepared.algorithm.points(server)) * examples / float(batch.mean()) / 3  # large batches cost less
    seconds = gradient * (steps + sweeps) / max(jax.local_device_count(), 1)
    return Plan(
        method=prepared.label,
        clients=len(sizes),
        cohort=s.cohort,
        rounds=s.rounds,
        gradient_rounds=prepared.algorithm.gradient_rounds,
        examples=examples,
        local_steps=steps,
        parameters=sum(int(np.prod(np.shape(leaf))) for leaf in jax.tree.leaves(model)),
        model_bytes=cost.model_bytes,
        bytes_down=down,
        bytes_up=up,
        total_bytes=s.rounds * (down + up),
        seconds=seconds,
        total_seconds=seconds * s.rounds,
    )


def _seconds_of_a_gradient(prepared: Prepared, model: Any, rows: int) -> float:
    """The best of a few trials of one mini-batch on one device."""
    largest = int(np.argmax(prepared.population.sizes))
    columns = prepared.population.client_at(largest)
    batch = {name: jnp.asarray(column[np.arange(rows) % len(column)]) for name, column in columns.items()}

    @jax.jit
    def gradient(model: Any) -> Any:
        return jax.grad(lambda m: prepared.problem.loss(m, batch, jax.random.key(0)).mean())(model)

    best = float("inf")
    for trial in range(_TRIALS + 1):
        begin = time.perf_counter()
        jax.block_until_ready(gradient(model))
        best = min(best, time.perf_counter() - begin) if trial else best
    return best
