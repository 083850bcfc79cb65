"""What a round asks of the clients, known before it begins: its `Work`, and the random keys that it goes by."""

from __future__ import annotations

import jax
import numpy as np

from fedmime.aggregation.aggregator import PLAIN, Aggregator
from fedmime.algorithms.abstract import Anchor
from fedmime.algorithms.algorithm import Algorithm
from fedmime.engine.backends.backend import Work
from fedmime.engine.cohort import Cohort
from fedmime.hyperparameters import at_round


def work_of(
    algorithm: Algorithm,
    anchor: Anchor,
    round_number: int,
    cohort: Cohort,
    key: jax.Array,
    aggregator: Aggregator = PLAIN,
    wants_losses: bool = False,
    prime: bool = False,
) -> Work:
    """The clients' work in a round. Apart from `prime` it needs no state, so it can be made before the round begins.

    Args:
        anchor: how local steps use gradient differences, `anchor_of(algorithm, server)`.
        key: the run's; each round and client folds its own numbers in.
        aggregator: what happens to messages on their way.
        wants_losses: whether the sampler of later rounds wants the losses of single clients.
        prime: whether this is a gradient-only round, `state.primes(algorithm)`.
    """
    recipe = at_round(algorithm, round_number)
    update_shares, gradient_shares = cohort.shares(algorithm.split, fixed=aggregator.privacy is not None)
    key = fold_in(key, round_number)
    pick = int(server_random_numbers(key)[0] * max(cohort.steps, 1)) if algorithm.draws else -1
    wants_gradients = prime or anchor.points > 0
    anchor = Anchor() if prime else anchor
    own = aggregator.at_round(round_number)
    return Work(
        recipe,
        round_number,
        cohort,
        update_shares,
        gradient_shares,
        key,
        pick,
        wants_gradients,
        anchor,
        own,
        wants_losses,
        prime,
    )


fold_in = jax.jit(jax.random.fold_in)
_key = jax.jit(jax.random.key)  # one program; eagerly it would be three


def run_key(seed: int) -> jax.Array:
    """The random key of a run. JAX alone would use only the lower 32 bits of a seed; the others are folded in."""
    key, high = _key(np.uint32(seed & 0xFFFFFFFF)), seed >> 32
    return fold_in(key, np.uint32(high)) if high else key


def server_random_numbers(key: jax.Array) -> np.ndarray:
    """Two uniform random numbers for the server's choices: which step to sample, and whether to keep its iterate."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key))).random(2)
