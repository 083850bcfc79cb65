"""In which order a client takes its examples: a pure function of seed, round and client."""

from __future__ import annotations

import numpy as np

from fedmime import randomness
from fedmime.engine.cohort import pad_rows

_STEPS = 20  # the stream of mini-batches, apart from those that cohorts are drawn from


def generator(seed: int, round_number: int, client: int = (1 << 32) - 1) -> np.random.Generator:
    """The random numbers of a client in a round, the same on any machine and in any order; by default the pool's."""
    return randomness.generator(seed, (round_number << 32) + client, _STEPS)


def mini_batches(
    examples: int, batch_size: int | None, epochs: int | None, steps: int | None, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Positions of a client's mini-batches and the real length of each.

    Examples are shuffled anew each epoch and the last partial mini-batch is kept; with `steps` the epochs go on until
    there are that many. A `batch_size` of None takes all examples at every step.
    """
    width = examples if batch_size is None else batch_size
    per_epoch = -(-examples // width)
    passes = epochs if steps is None else -(-steps // per_epoch)
    assert passes is not None
    lengths = np.full(per_epoch, width, np.int32)
    lengths[-1] = examples - width * (per_epoch - 1)
    rows = []
    for _ in range(passes):
        order = random.permutation(examples).astype(np.int32)
        whole = order[: width * (per_epoch - 1)].reshape(-1, width)
        rows += [whole, pad_rows(order[None, width * (per_epoch - 1) :], width)]
    return np.concatenate(rows)[:steps], np.tile(lengths, passes)[:steps]
