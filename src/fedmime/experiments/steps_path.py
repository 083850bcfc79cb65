r"""How wrong a client's direction is along its local steps, with and without Mime's correction.

At y, a client steps along $\nabla f_i(y)$ or along $\nabla f_i(y) - \nabla f_i(x) + \nabla f(x)$ where $\nabla f(y)$ is
meant. The first is off by what clients differ in, G; the second by at most $\delta \|y - x\|$: nothing at first, and
more with every step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree

from fedmime.experiments.train import Prepared
from fedmime.models.problem import Batch, Params
from fedmime.randomness import generator
from fedmime.theory.derivatives import Loss, programs, rows, still

_STREAM = 37  # of clients and mini-batches
_CHUNK = 256
METHODS = {"FedAvg": 0.0, "Mime": 1.0}  # how much of the correction they step with
Columns = dict[str, np.ndarray]


def errors(
    prepared: Prepared, x: Params, eta: float, marks: tuple[int, ...], clients: int, tick: Callable[[], None]
) -> dict[str, Any]:
    """For each method after so many steps: distance from x and both errors (root mean square), mean f; over clients."""
    population, batch = prepared.population, prepared.setting.batch or 1
    random = generator(0, stream=_STREAM)
    large = np.flatnonzero(population.sizes >= batch)
    drawn = [population.client_at(int(i)) for i in random.choice(large, min(clients, len(large)), replace=False)]
    union = {name: np.concatenate([client[name] for client in drawn]) for name in drawn[0]}
    loss = still(prepared.problem, x, union)
    flat, unravel = ravel_pytree(x)

    def gradient(y: jax.Array, examples: Columns) -> tuple[float, jax.Array]:
        n = len(next(iter(examples.values())))
        f, g = programs(loss).gradient(unravel(y), rows(examples, np.full(n, 1 / n), _CHUNK))
        return float(f), g

    start, c = gradient(flat, union)
    found: dict[str, Any] = {}
    for name, corrected in METHODS.items():
        seen = np.zeros((len(marks), 4))
        for client in drawn:
            y, done, own = flat, 0, gradient(flat, client)[1]
            batches = _batches(client, max(marks), batch, random)
            for place, mark in enumerate(marks):
                part = {field: column[done:mark] for field, column in batches.items()}
                y, done = _walk(loss, x, c, y, part, eta, corrected), mark
                f, here = gradient(y, union)
                mine = gradient(y, client)[1]
                seen[place] += [_square(y - flat), _square(mine - here), _square(mine - own + c - here), f]
            tick()
        mean = seen / len(drawn)
        moved, plain, after_correction = np.sqrt(mean[:, :3]).T.tolist()
        found[name] = {"moved": moved, "plain": plain, "corrected": after_correction, "loss": mean[:, 3].tolist()}
    return {"loss": start, "methods": found}


def _square(v: jax.Array) -> float:
    return float(jnp.vdot(v, v))


def _batches(client: Columns, steps: int, batch: int, random: np.random.Generator) -> Columns:
    """[steps, batch, ...]: whole mini-batches of shuffled passes."""
    n = len(next(iter(client.values())))
    whole = n // batch
    passes = [random.permutation(n)[: whole * batch] for _ in range(-(-steps // whole))]
    order = np.concatenate(passes)[: steps * batch].reshape(steps, batch)
    return {name: column[order] for name, column in client.items()}


@functools.partial(jax.jit, static_argnums=0)
def _walk(loss: Loss, x: Params, c: jax.Array, y: jax.Array, batches: Batch, eta: float, corrected: float) -> jax.Array:
    flat, unravel = ravel_pytree(x)

    def gradient(y: jax.Array, examples: Batch) -> jax.Array:
        return jax.grad(lambda y: loss(unravel(y), examples).mean())(y)

    def step(y: jax.Array, examples: Batch) -> tuple[jax.Array, None]:
        return y - eta * (gradient(y, examples) + corrected * (c - gradient(flat, examples))), None

    return lax.scan(step, y, batches)[0]
