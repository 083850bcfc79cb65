"""Which clients a round sees and in which order each takes its examples: pure functions of seed, round and client."""

from __future__ import annotations

import numpy as np

from fedmime.engine.cohort import pad_rows

_COHORT_STREAM = 1 << 63  # apart from the clients' own streams


def generator(seed: int, round_number: int, client: int | None = None) -> np.random.Generator:
    """The random numbers of a round, or of one client in it: the same on any machine, in any order."""
    stream = _COHORT_STREAM + round_number if client is None else (round_number << 32) + client
    return np.random.Generator(np.random.Philox(key=np.array([seed, stream], np.uint64)))


def uniform(available: np.ndarray, cohort_size: int, seed: int, round_number: int) -> np.ndarray:
    """A cohort drawn without replacement from the positions in `available`."""
    return generator(seed, round_number).choice(available, cohort_size, replace=False, shuffle=True)


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
