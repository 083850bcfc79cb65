r"""How far gradients are apart: those of clients ($G^2$), and those of a client's mini-batches ($\sigma^2$)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from fedmime.data import Population
from fedmime.errors import DataError
from fedmime.models.problem import Problem
from fedmime.theory.derivatives import Programs, rows
from fedmime.theory.draws import Draws, Interval, average


class Spread(NamedTuple):
    """G² and σ² with their intervals, ‖∇f‖² and f, and what that took."""

    G2: tuple[float, Interval]
    sigma2: tuple[float, Interval]
    gradient_norm2: float
    loss: float
    gradients: int
    examples: int


def gradient_spread(
    problem: Problem,
    compiled: Programs,
    population: Population,
    params: Any,
    drawn: Draws,
    batch_size: int | None,
    passes: int,
    random: np.random.Generator,
    tell: Callable[[], None],
) -> Spread:
    """First the mean gradient in large chunks, then every client's distance from it and its mini-batches' spread."""
    sizes = population.sizes[drawn.positions]
    largest = int(sizes.max())
    chunk, width = min(problem.chunk, largest), min(batch_size or problem.chunk, largest)
    mean, loss = jnp.zeros_like(ravel_pytree(params)[0]), 0.0
    for position, n, share in zip(drawn.positions, sizes, drawn.shares, strict=True):
        columns = population.client_at(int(position))
        value, part = compiled.gradient(params, rows(columns, np.full(n, share / n), chunk, -(-largest // chunk)))
        if not np.isfinite(float(value) + float(jnp.vdot(part, part))):
            name = population.ids[int(position)]
            raise DataError(
                f"constants: the gradient of client {name!r} is not finite; `fedmime data verify` tells more"
            )
        mean, loss = mean + part, loss + float(value)
        tell()
    distances, variances, batches = [], [], 0
    for position, n in zip(drawn.positions, sizes, strict=True):
        columns = population.client_at(int(position))
        distance, squares = 0.0, []
        for _ in range(passes if n > width else 1):
            order = random.permutation(int(n))
            shuffled = {name: column[order] for name, column in columns.items()}
            table = rows(shuffled, np.ones(n), width, -(-largest // width))
            distance, square = compiled.scatter(params, table, mean)
            squares.append(float(square))
            batches += table.count
        distances.append(float(distance))
        variances.append(_variance(float(np.mean(squares)), int(n), batch_size))
        tell()
    examples = int(sizes.sum()) + int((sizes * np.where(sizes > width, passes, 1)).sum())
    chunks = int((-(-sizes // chunk)).sum())
    return Spread(
        average(drawn.bessel * np.asarray(distances), drawn, random),
        average(np.asarray(variances), drawn, random),
        # the squared norm of a mean is too large by the mean's own variance
        float(jnp.vdot(mean, mean)) - drawn.fraction * drawn.bessel * float(drawn.shares @ distances) / drawn.size,
        loss,
        chunks + batches,
        examples,
    )


def _variance(squares: float, n: int, batch_size: int | None) -> float:
    r"""σ² of one client, the mean over the mini-batches of an epoch of $\frac{s^2}{B_k}(1 - \frac{B_k}{n})$.

    An epoch takes every example once, so mini-batches are drawn without replacement and one of all n has no variance.
    $s^2$ is the variance of single examples; $\sum_k B_k\|b_k - g\|^2$ is $(K-1) s^2$ on average, whatever the sizes.
    """
    if batch_size is None or n <= batch_size:
        return 0.0
    lengths = np.full(-(-n // batch_size), batch_size)
    lengths[-1] = n - batch_size * (len(lengths) - 1)
    single = squares / (len(lengths) - 1)
    return float(np.mean(single / lengths * (1 - lengths / n)))
