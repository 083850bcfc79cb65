r"""Problems with chosen $L$, $\delta$, $G^2$ and $\sigma^2$ on which every gradient is one product.

$f_i(x; \zeta) = \frac12 x^\top A_i x - (b_i + \zeta)^\top x + \beta \sum_j \frac{x_j^2}{1 + x_j^2}$. The last term, the
same for all clients, makes f non-convex (its second derivative goes from −β/2 to 2β) and leaves G² and δ alone.
The mean Hessian's eigenvalues $\lambda_j$ fall from L by decades and the start has the same loss along each
eigenvector, so gradient descent needs $\|\nabla f\|^2 \propto L F / t$: as slow as its worst case.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Landscape(NamedTuple):
    """Arrays of all clients: an argument of compiled programs, so other constants need no other program."""

    hessians: jax.Array  # A_i [clients, dim, dim]
    linear: jax.Array  # b_i [clients, dim]
    noise: jax.Array  # ζ [clients, examples, dim], of mean zero for every client
    bend: jax.Array  # β
    start: jax.Array  # x_0

    @property
    def clients(self) -> int:
        """N."""
        return self.hessians.shape[0]

    @property
    def examples(self) -> int:
        """Mini-batches in an epoch."""
        return self.noise.shape[1]

    def bent(self, x: jax.Array) -> jax.Array:
        """The gradient of the non-convex term."""
        return self.bend * 2 * x / (1 + x**2) ** 2

    def gradients(self, x: jax.Array, cohort: jax.Array) -> jax.Array:
        """Full gradients [cohort, dim] at x."""
        return self.hessians[cohort] @ x - self.linear[cohort] + self.bent(x)

    def mean_gradient(self, x: jax.Array) -> jax.Array:
        """∇f."""
        return self.hessians.mean(0) @ x - self.linear.mean(0) + self.bent(x)

    def smoothness(self) -> float:
        """An L that every client's loss has, at any point."""
        return max(float(np.linalg.norm(a, 2)) for a in np.asarray(self.hessians)) + 2 * float(self.bend)

    def gradient_dissimilarity(self, x: np.ndarray) -> float:
        """G² at x."""
        gradients = np.asarray(self.hessians) @ x - np.asarray(self.linear)
        return float(np.mean(np.sum((gradients - gradients.mean(0)) ** 2, axis=1)))


def landscape(
    delta: float,
    *,
    bend: float = 0.0,
    aligned: bool = True,
    clients: int = 100,
    dim: int = 20,
    smallest: float = 2e-4,
    G2: float = 0.02,
    sigma2: float = 0.02,
    examples: int = 10,
    seed: int = 0,
) -> Landscape:
    r"""A problem with L = 1, this δ, and this G² at the optimum of its quadratic part.

    Away from the optimum, Hessians that differ add to G². `aligned` ones, $A_i = A + A^{1/2} R_i A^{1/2}$, add at most
    $2\delta^2 F$, so that δ can change while G² hardly does; otherwise they differ equally in all directions.
    """
    random = np.random.default_rng(seed)
    basis = np.linalg.qr(random.normal(size=(dim, dim)))[0]
    eigenvalues = np.geomspace(1 - 2 * bend, smallest, dim)
    raw = random.normal(size=(clients, dim, dim))
    apart = raw + np.swapaxes(raw, 1, 2)
    scale = np.sqrt(eigenvalues if aligned else np.ones(dim))
    apart = basis @ (scale[:, None] * (apart - apart.mean(0)) * scale) @ basis.T
    apart *= delta / max(np.linalg.norm(a, 2) for a in apart)
    pull, zeta = random.normal(size=(clients, dim)), random.normal(size=(clients, examples, dim))
    pull -= pull.mean(0)
    zeta -= zeta.mean(1, keepdims=True)
    pull *= np.sqrt(G2 / np.mean(np.sum(pull**2, axis=1)))
    zeta *= np.sqrt(sigma2 / np.maximum(np.mean(np.sum(zeta**2, axis=2)), 1e-300))
    # the optimum of the quadratic part is 0, where the bent term has no gradient either
    start = basis @ (np.sqrt(2 / dim / eigenvalues) * np.sign(random.normal(size=dim)))
    hessians = basis @ np.diag(eigenvalues) @ basis.T + apart
    return Landscape(*(jnp.asarray(a) for a in (hessians, pull, zeta, np.asarray(bend), start)))
