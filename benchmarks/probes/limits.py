"""What one core can do: large and small matrix products, and moving memory, as XLA does them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

LARGE = 1024
COPIES = 4  # operands to choose from, so that a product cannot be taken out of the loop
STREAM = 1 << 24  # numbers: 64 MB an array, beyond any cache


def seconds_of(run: Callable[[int], object], stretch: float) -> float:
    """The time of one more repetition, from stretches of about the given seconds and three times that."""
    repetitions = 4
    while (elapsed := _elapsed(run, repetitions)) < stretch:
        repetitions *= min(8, 1 + int(1.2 * stretch / max(elapsed, 1e-6)))  # short stretches are all dispatch
    short, long = (min(_elapsed(run, times) for _ in range(5)) for times in (repetitions, 3 * repetitions))
    return (long - short) / (2 * repetitions)


def _elapsed(run: Callable[[int], object], repetitions: int) -> float:
    start = time.process_time()  # the process has one core, and others may want it too
    jax.block_until_ready(run(repetitions))
    return time.process_time() - start


def product(m: int, k: int, n: int, stretch: float) -> float:
    """Seconds of [m, k] x [k, n] in float32."""
    random = np.random.default_rng(0)
    a, b = (jnp.asarray(random.random(shape, np.float32)) for shape in ((COPIES, m, k), (k, n)))

    @jax.jit
    def repeat(times: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
        return lax.fori_loop(0, times, lambda i, _: a[i % COPIES] @ b, jnp.zeros((m, n)))

    jax.block_until_ready(repeat(1, a, b))
    return seconds_of(lambda times: repeat(times, a, b), stretch)


def update(size: int, stretch: float) -> float:
    """Seconds of y ← y − ηg on vectors of a size, the triad of every local step."""
    y, g = jnp.ones(size), jnp.full(size, 1e-6)

    @jax.jit
    def repeat(times: jax.Array, y: jax.Array, g: jax.Array) -> jax.Array:
        return lax.fori_loop(0, times, lambda i, y: y - jnp.float32(1e-3) * i * g, y)

    jax.block_until_ready(repeat(1, y, g))
    return seconds_of(lambda times: repeat(times, y, g), stretch)


def main() -> None:
    """Measure what was asked for."""
    asked = json.loads(sys.argv[1])
    stretch = asked["stretch"]
    large = product(LARGE, LARGE, LARGE, stretch)
    found = {
        "peak": 2 * LARGE**3 / large,
        "bandwidth": 3 * 4 * STREAM / update(STREAM, stretch) if asked["updates"] else None,
        "products": [product(*shape, stretch) for shape in asked["products"]],
        "updates": [update(size, stretch) for size in asked["updates"]],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
