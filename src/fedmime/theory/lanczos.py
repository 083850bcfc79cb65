r"""The norm of a symmetric operator of which only products with vectors are known, by Lanczos' method."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedmime.errors import DataError

LEAST = 4  # products before the residual is believed: a start may lie across the leading direction by accident


class Norm(NamedTuple):
    r"""$|\theta|$ of the largest Ritz value: never above the norm, and some eigenvalue lies within `residual` of θ."""

    value: float
    residual: float
    vector: jax.Array  # the Ritz vector
    products: int


def norm(
    product: Callable[[jax.Array], jax.Array],
    like: jax.Array,
    random: np.random.Generator,
    tolerance: float,
    products: int,
) -> Norm:
    """Build a Krylov space from a random start until the residual is below `tolerance` of the value.

    Every new vector is made orthogonal to all before it, twice, so rounding does not repeat directions.
    """
    most = min(products, like.size)
    q = _unit(jnp.asarray(random.standard_normal(like.size), like.dtype))[0]
    basis, alphas, betas = [q], [], []
    while True:
        w = product(basis[-1])
        alphas.append(float(jnp.vdot(basis[-1], w)))
        if not np.isfinite(alphas[-1]):
            raise DataError("constants: a Hessian-vector product is not finite, as the data or the loss may not be")
        for _ in range(2):
            for q in basis:
                w = _without(w, q)
        q, size = _unit(w)
        theta, s = _extreme(alphas, betas)
        residual = float(size) * abs(float(s[-1]))
        done = len(alphas) >= min(LEAST, most) and residual <= tolerance * abs(theta)
        if done or len(alphas) == most or float(size) <= _ROUNDING * max(abs(theta), 1e-300):
            vector = sum((float(c) * q for c, q in zip(s, basis, strict=True)), jnp.zeros_like(like))
            return Norm(abs(theta), residual, vector, len(alphas))
        betas.append(float(size))
        basis.append(q)


_ROUNDING = 1e-7  # of the value: what is left of a product is rounding, the space is complete


def _extreme(alphas: list[float], betas: list[float]) -> tuple[float, np.ndarray]:
    """The Ritz value of largest size and its coordinates."""
    values, vectors = np.linalg.eigh(np.diag(alphas) + np.diag(betas, 1) + np.diag(betas, -1))
    i = int(np.argmax(np.abs(values)))
    return float(values[i]), vectors[:, i]


@jax.jit
def _without(w: jax.Array, q: jax.Array) -> jax.Array:
    return w - jnp.vdot(q, w) * q


@jax.jit
def _unit(w: jax.Array) -> tuple[jax.Array, jax.Array]:
    size = jnp.linalg.norm(w)
    return w / jnp.where(size > 0, size, 1), size
