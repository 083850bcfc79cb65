"""In which order a client takes its examples: a pure function of seed, round and client."""

from __future__ import annotations

import functools

import numpy as np

from fedmime import randomness

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
    rows = np.empty((passes, per_epoch * width), np.int32)
    for row in rows:
        row[:examples] = random.permutation(examples)
        row[examples:] = row[-width]  # padding repeats the first row of the last mini-batch
    counts = _counts(passes, per_epoch, width, per_epoch * width - examples)
    return rows.reshape(-1, width)[:steps], counts[:steps]


@functools.lru_cache(maxsize=4096)
def _counts(passes: int, per_epoch: int, width: int, missing: int) -> np.ndarray:
    """The lengths of mini-batches, of which the last in every pass lacks some; one array for all who ask."""
    counts = np.full((passes, per_epoch), width, np.int32)
    counts[:, -1] -= missing
    counts.setflags(write=False)
    return counts.reshape(-1)
