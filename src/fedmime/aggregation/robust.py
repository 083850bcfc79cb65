"""Combiners that a minority of malicious or broken clients can move only so far.

The weighted mean follows a single client anywhere: one that sends ten times the negative of its update cancels ten
honest ones. The combiners here bound that influence. They need the messages of the whole cohort at once, and they cost
accuracy where clients differ, since what is unusual may be honest.

All of them run in compiled programs: which clients are present is known only from the weights. Where nobody is present,
the result is zero. Messages are expected to have passed `fedmime.aggregation.gate`, so that they are finite and their
squared norms do not overflow.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fedmime.aggregation.combiner import Combiner, mean
from fedmime.hyperparameters import Number, Value, checked, number, recipe, static
from fedmime.validation import POSITIVE, Range, count
from fedmime.vector import Vector, norm, squared_distance

_BELOW_HALF = Range(lambda v: 0 <= v < 0.5, "lie in [0, 0.5)")


@recipe
class Median(Combiner):
    """The coordinate-wise median as a recipe; `median` explains it."""

    def combine(self, messages: Any, weights: jax.Array) -> Any:
        n = jnp.sum(weights > 0)

        def middle(leaf: jax.Array) -> jax.Array:
            lower, upper = (leaf[jnp.maximum(place, 0)] for place in ((n - 1) // 2, n // 2))
            return jnp.where(n > 0, lower / 2 + upper / 2, 0)  # halves first: a sum could overflow

        return jax.tree.map(middle, _sorted(messages, weights))


@recipe
class TrimmedMean(Combiner):
    """The coordinate-wise trimmed mean as a recipe; `trimmed_mean` explains its argument."""

    fraction: Value = number(_BELOW_HALF)

    def combine(self, messages: Any, weights: jax.Array) -> Any:
        n, places = jnp.sum(weights > 0), jnp.arange(len(weights))
        # 0.29 * 100 is slightly less than 29 in binary; and rounding must not trim everything.
        trimmed = jnp.floor(jnp.asarray(self.fraction, jnp.float32) * n.astype(jnp.float32) + 1e-4).astype(n.dtype)
        trimmed = jnp.clip(trimmed, 0, jnp.maximum(n - 1, 0) // 2)
        inner = (places >= trimmed) & (places < n - trimmed)
        return _mean_of(inner, _sorted(messages, weights))


@recipe
class GeometricMedian(Combiner):
    """The geometric median as a recipe; `geometric_median` explains its arguments."""

    iterations: int = static()
    smoothing: Value = number(POSITIVE)

    def combine(self, messages: Any, weights: jax.Array) -> Any:
        messages = _filled(messages, weights, 0)

        def weighted_mean(shares: jax.Array) -> Any:
            total = jnp.where(shares.sum() > 0, shares.sum(), 1)
            return jax.tree.map(
                lambda leaf: jnp.tensordot(shares.astype(leaf.dtype), leaf, 1) / total.astype(leaf.dtype), messages
            )

        def step(_: Any, v: Any) -> Any:
            distances = jax.vmap(lambda message: norm(Vector(message) - Vector(v)))(messages)
            floor = jnp.asarray(self.smoothing, distances.dtype)
            return weighted_mean(weights.astype(distances.dtype) / jnp.maximum(distances, floor))

        return jax.lax.fori_loop(0, self.iterations, step, weighted_mean(weights))


@recipe
class Krum(Combiner):
    """Multi-Krum as a recipe; `krum` explains its arguments."""

    attackers: int = static()
    keep: int = static()

    def combine(self, messages: Any, weights: jax.Array) -> Any:
        messages, present = _filled(messages, weights, 0), weights > 0
        n, places = jnp.sum(present), jnp.arange(len(weights))

        def score(i: jax.Array) -> jax.Array:
            own = Vector(jax.tree.map(lambda leaf: leaf[i], messages))
            distances = jax.vmap(lambda message: squared_distance(Vector(message), own))(messages)
            nearest = jnp.sort(jnp.where(present & (places != i), distances, jnp.inf))
            neighbours = jnp.minimum(jnp.maximum(n - self.attackers - 2, 1), n - 1)
            return jnp.where(present[i], jnp.sum(jnp.where(places < neighbours, nearest, 0)), jnp.inf)

        # One client at a time: all differences at once would take a cohort of cohorts of memory.
        order = jnp.argsort(jax.lax.map(score, places))
        chosen = jnp.zeros(len(weights), bool).at[order].set(places < jnp.minimum(self.keep, n))
        return _mean_of(chosen, messages)


def median() -> Median:
    """The median of each coordinate over the clients that are present.

    It is unweighted: a weight is a client's own claim, and a weighted median would follow a few large claims. Of an
    even number of clients it is the mean of the middle two. It tolerates malicious clients in a minority.

    Reference: Yin et al., 2018, https://arxiv.org/abs/1803.01498
    """
    return Median()


def trimmed_mean(fraction: Number) -> Combiner:
    r"""The mean of each coordinate without its largest and smallest values.

    Of $n$ clients that are present, $\lfloor\text{fraction} \cdot n\rfloor$ values are dropped at each end. The mean of
    the others is unweighted, since who remains differs from coordinate to coordinate. It tolerates as many malicious
    clients as it drops at one end.

    Args:
        fraction: the share of clients dropped at each end, in [0, 0.5), or a schedule. For the number 0 the result is
            `mean()` itself: nothing is dropped, so there is no reason to ignore the weights or to sort, and a run
            without trimming equals one without a robust combiner bit for bit. A schedule that reaches 0 stays
            unweighted.

    Reference: Yin et al., 2018, https://arxiv.org/abs/1803.01498
    """
    made = checked(TrimmedMean(fraction), "trimmed_mean")
    return mean() if made.fraction == 0 else made


def geometric_median(iterations: int = 16, smoothing: Number = 1e-6) -> GeometricMedian:
    r"""The point with the least weighted sum of distances to the messages, $\min_v \sum_i w_i \|z_i - v\|$.

    A message is one vector, with all its arrays together. Starting from the weighted mean, each step of the smoothed
    Weiszfeld algorithm takes the mean with the weights $w_i / \max(\nu, \|z_i - v\|)$. It tolerates malicious clients
    with less than half of the total weight, so that weights should be uniform or bounded by the gate.

    Args:
        iterations: the number of steps; each reads all messages twice.
        smoothing: $\nu$, a distance below which a message is not followed more closely; small beside the distances
            between messages.

    Reference: Pillutla, Kakade and Harchaoui, 2022, https://arxiv.org/abs/1912.13445
    """
    iterations = count("geometric_median", "iterations", iterations, least=1)
    return checked(GeometricMedian(iterations, smoothing), "geometric_median")


def krum(attackers: int, keep: int = 1) -> Krum:
    r"""Multi-Krum: the unweighted mean of the `keep` messages that are closest to their neighbours.

    The score of a client among $n$ that are present is the sum of the squared distances to its $n - f - 2$ nearest
    neighbours, at least one. The clients with the lowest scores are kept; of equal scores, the first. The guarantee of
    the paper needs $n \geq 2f + 3$. The time grows with the square of the cohort.

    Args:
        attackers: $f$, the number of malicious clients to tolerate in a cohort.
        keep: how many messages to average; 1 is Krum. More than are present means all of them.

    Reference: Blanchard et al., 2017, https://arxiv.org/abs/1703.02757
    """
    return Krum(count("krum", "attackers", attackers), count("krum", "keep", keep, least=1))


def _filled(messages: Any, weights: jax.Array, value: float) -> Any:
    """The messages [clients, ...] with `value` in the rows of clients that are absent."""

    def fill(leaf: jax.Array) -> jax.Array:
        present = (weights > 0).reshape(-1, *(1,) * (leaf.ndim - 1))
        return jnp.where(present, leaf, jnp.asarray(value, leaf.dtype))

    return jax.tree.map(fill, messages)


def _sorted(messages: Any, weights: jax.Array) -> Any:
    """Each coordinate sorted over the clients [clients, ...]; what absent clients left comes last, as infinity."""
    return jax.tree.map(lambda leaf: jnp.sort(leaf, axis=0), _filled(messages, weights, jnp.inf))


def _mean_of(chosen: jax.Array, rows: Any) -> Any:
    """The unweighted mean of the chosen rows [clients] of a pytree; zero if there is none."""
    number_chosen = jnp.maximum(jnp.sum(chosen), 1)

    def average(leaf: jax.Array) -> jax.Array:
        mask = chosen.reshape(-1, *(1,) * (leaf.ndim - 1))
        return jnp.sum(jnp.where(mask, leaf, 0), axis=0) / number_chosen.astype(leaf.dtype)

    return jax.tree.map(average, rows)
