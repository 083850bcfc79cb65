"""Which mini-batches a client takes in a round: a pure function of seed, round and client.

It needs NumPy alone, so that a client that is not written in JAX draws the same mini-batches as one that is.
"""

from __future__ import annotations

import functools

import numpy as np

from fedmime import randomness

_STEPS = 20  # random stream of mini-batches, different from those that cohorts are drawn from


def generator(seed: int, round_number: int, client: int = (1 << 32) - 1) -> np.random.Generator:
    """The random number generator of a client in a round, the same on any machine and in any order of calls.

    Args:
        client: position in the population. The default, a position that no client has, belongs to pooled data.
    """
    return randomness.generator(seed, (round_number << 32) + client, _STEPS)


def mini_batches(
    examples: int, batch_size: int | None, epochs: int | None, steps: int | None, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw the mini-batches of a client.

    The examples are shuffled anew in every epoch. The last mini-batch of an epoch keeps the remaining examples, and is
    padded to full width by repeating its first row, so that padding holds values as sound as the data.

    Args:
        examples: n_i, the number of examples of the client.
        batch_size: examples in a mini-batch; None takes all of them at every step.
        epochs: passes over the data, if `steps` is None.
        steps: number of mini-batches; epochs are repeated until there are that many.
        random: the client's generator.

    Returns:
        Positions of examples [steps, batch], int32, and the number of real ones in each mini-batch [steps], int32. Real
        rows come first.
    """
    width = examples if batch_size is None else batch_size
    per_epoch = -(-examples // width)
    passes = epochs if steps is None else -(-steps // per_epoch)
    assert passes is not None
    rows = np.empty((passes, per_epoch * width), np.int32)
    for row in rows:
        row[:examples] = random.permutation(examples)
        row[examples:] = row[-width]  # padding
    counts = _counts(passes, per_epoch, width, per_epoch * width - examples)
    return rows.reshape(-1, width)[:steps], counts[:steps]


@functools.lru_cache(maxsize=4096)
def _counts(passes: int, per_epoch: int, width: int, missing: int) -> np.ndarray:
    """The lengths of mini-batches [passes * per_epoch]: `width`, less the `missing` ones in the last of every pass.

    Many clients have the same lengths, and computing them takes longer than looking them up. The array is shared and
    therefore read-only.
    """
    counts = np.full((passes, per_epoch), width, np.int32)
    counts[:, -1] -= missing
    counts.setflags(write=False)
    return counts.reshape(-1)
