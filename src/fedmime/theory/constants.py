r"""The four constants that the paper's rates depend on, measured at a point of a real task.

With $f = \sum_i w_i f_i$, $w_i \propto n_i$ or equal:
$G^2 = \sum_i w_i \|\nabla f_i - \nabla f\|^2$, $\sigma^2 = \sum_i w_i E\|\nabla f_i(\cdot;\zeta) - \nabla f_i\|^2$ for
the mini-batches ζ of an epoch, $L = \|\nabla^2 f\|$ and $\delta = \max_i \|\nabla^2 f_i - \nabla^2 f\|$.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedmime.data import Population
from fedmime.errors import ConfigError
from fedmime.models.problem import Problem
from fedmime.randomness import generator
from fedmime.theory.curvature import curvature
from fedmime.theory.derivatives import programs, still
from fedmime.theory.draws import Interval, draw
from fedmime.theory.spread import gradient_spread
from fedmime.validation import LARGEST_SEED, POSITIVE, choice, count, floating, offers, real, started

Progress = Callable[[int, int], None]

_STREAM = 31  # of shuffling, start vectors and resampling, apart from the draw of clients


class Intervals(NamedTuple):
    """Where the constants lie with 95 % confidence, as far as the draw of clients and the iterations are concerned."""

    G2: Interval
    sigma2: Interval
    L: Interval
    delta: Interval


class Cost(NamedTuple):
    """What measuring took."""

    gradients: int  # of mini-batches and chunks
    products: int  # Hessian-vector products, each over all examples of the clients drawn for curvature
    examples: int  # that a gradient or product went through, counted every time
    seconds: float


@dataclasses.dataclass(frozen=True)
class Constants:
    """G², σ², L and δ; the rest says how well they are known. The rates need only the first four."""

    G2: float
    sigma2: float
    L: float
    delta: float
    intervals: Intervals | None = None
    deltas: tuple[float, ...] = ()  # of every client drawn for curvature, largest first
    covered: float = 0.0  # share of clients whose distance is at most delta, with 95 % confidence
    gradient_norm2: float = float("nan")  # ‖∇f‖²
    loss: float = float("nan")  # f
    population: int | None = None  # N
    batch_size: int | None = None
    cost: Cost | None = None

    def quantile(self, share: float) -> float:
        """The distance of Hessians that this share of the drawn clients does not exceed: robust where δ is not."""
        return float(np.quantile(self.deltas, share)) if self.deltas else self.delta


def constants(
    problem: Problem,
    population: Population,
    params: Any,
    *,
    clients: int = 100,
    curvature_clients: int = 20,
    curvature_examples: int | None = None,
    batch_size: int | None = 10,
    weights: str = "examples",
    passes: int = 1,
    tolerance: float = 0.05,
    products: int = 30,
    seed: int = 0,
    progress: Progress | None = None,
) -> Constants:
    r"""Measure $G^2$, $\sigma^2$, $L$ and $\delta$ at `params`, without bias for the first two.

    Args:
        clients: drawn for the gradients; everybody where the population is no larger.
        curvature_clients: drawn for the Hessians, from which f's own is estimated as well.
        curvature_examples: of each of these clients at most, drawn at random, for models that are costly; by default
            all. Fewer make Hessians noisier, and δ larger.
        batch_size: of the mini-batches whose variance is σ²; None takes all examples, whose variance is zero.
        weights: of clients in f: `"examples"` as the engine averages by default, or `"uniform"`.
        passes: shuffled epochs of every client behind σ².
        tolerance: residual, relative to a norm, at which Lanczos' iterations stop, or after
        products: that many Hessian-vector products.
        progress: called with what is done and what there is to do.
    """
    start = time.perf_counter()
    offers("constants", "problem", problem, ("loss", "metrics", "chunk", "check"), "come from fm.models")
    offers("constants", "population", population, ("sizes", "client_at"), "come from fm.data")
    started("constants", "params", floating("constants", "params", params), getattr(problem, "init", None))
    for name, value, least in (
        ("clients", clients, 2),
        ("curvature_clients", curvature_clients, 1),
        ("passes", passes, 1),
        ("products", products, 2),
    ):
        count("constants", name, value, least=least)
    count("constants", "seed", seed, most=LARGEST_SEED)
    for name, value in (("batch_size", batch_size), ("curvature_examples", curvature_examples)):
        if value is not None:
            count("constants", name, value, least=1)
    choice("constants", "weights", weights, ("examples", "uniform"))
    real("constants", "tolerance", tolerance, POSITIVE)
    params = jax.tree.map(jnp.asarray, params)
    if not all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(params)):
        raise ConfigError("constants: params must be finite; a diverged model has no constants")

    near = draw(population, clients, weights, seed)
    far = draw(population, curvature_clients, weights, seed + 1)
    sample = population.client_at(int(near.positions[0]))
    problem.check(sample)
    compiled = programs(still(problem, params, sample))
    tell = _counter(progress, 2 * len(near.positions) + 1 + len(far.positions))
    random = generator(seed, 1, _STREAM)
    first = gradient_spread(problem, compiled, population, params, near, batch_size, passes, random, tell)
    second = curvature(
        problem, compiled, population, params, far, curvature_examples, tolerance, products, random, tell
    )
    worst = max(second.distances, key=lambda found: found.value)
    return Constants(
        G2=first.G2[0],
        sigma2=first.sigma2[0],
        L=second.L.value,
        delta=worst.value,
        intervals=Intervals(first.G2[1], first.sigma2[1], second.interval, (worst.value, worst.value + worst.residual)),
        deltas=tuple(sorted((found.value for found in second.distances), reverse=True)),
        covered=0.05 ** (1 / far.size) if far.fraction else 1.0,
        gradient_norm2=first.gradient_norm2,
        loss=first.loss,
        population=int(np.count_nonzero(population.sizes)),
        batch_size=batch_size,
        cost=Cost(first.gradients, second.products, first.examples + second.examples, time.perf_counter() - start),
    )


def _counter(progress: Progress | None, total: int) -> Callable[[], None]:
    done = 0

    def tell() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    return tell
