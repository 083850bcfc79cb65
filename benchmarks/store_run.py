"""Twenty rounds of logistic regression on a store, in a process of its own: prints the peak RSS in MB.

python -m benchmarks.store_run STORE
"""

from __future__ import annotations

import resource
import sys

import jax
import jax.numpy as jnp

import fedmime as fm

FEATURES, CLASSES = 256, 10


def problem() -> fm.models.Problem:
    """Which tenth of the vocabulary the first word is followed by, from the hashed words of the sentence."""

    def init(key: jax.Array) -> dict[str, jax.Array]:
        return {"w": jnp.zeros((FEATURES, CLASSES)), "b": jnp.zeros(CLASSES)}

    def loss(params, batch, key):
        words = jax.nn.one_hot(batch["x"] % FEATURES, FEATURES).mean(axis=1)
        scores = jax.nn.log_softmax(words @ params["w"] + params["b"])
        return -jnp.take_along_axis(scores, batch["y"][:, :1] % CLASSES, axis=1)[:, 0]

    return fm.models.from_functions(init, loss)


def main(path: str) -> None:
    """Train and report."""
    population = fm.data.from_store(path)
    fm.simulate(fm.algorithms.fedavg(0.1), problem(), population, rounds=20, cohort_size=50, batch_size=10)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


if __name__ == "__main__":
    main(sys.argv[1])
