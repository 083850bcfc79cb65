r"""Quadratic problems whose optimum, smoothness and dissimilarities are known exactly.

$f_i(x; \zeta) = \frac12 x^\top A_i x - (b_i + \zeta)^\top x$: clients differ in their Hessians $A_i$ and in their
gradients, and $\zeta$ is the noise of a mini-batch.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from fedmime.data import Population, from_arrays
from fedmime.errors import ConfigError
from fedmime.models.problem import Problem
from fedmime.validation import LARGEST_SEED, NON_NEGATIVE, POSITIVE, count, real


@dataclasses.dataclass(frozen=True)
class Quadratics:
    """Clients' quadratics, averaged uniformly."""

    hessians: np.ndarray  # A_i [clients, dim, dim]
    linear: np.ndarray  # b_i [clients, dim]
    noise: np.ndarray  # ζ [clients, examples, dim], of mean zero for every client

    @property
    def hessian(self) -> np.ndarray:
        """That of the mean loss."""
        return self.hessians.mean(axis=0)

    @property
    def optimum(self) -> np.ndarray:
        """Where the mean loss is least."""
        return np.linalg.solve(self.hessian, self.linear.mean(axis=0))

    @property
    def client_optima(self) -> np.ndarray:
        """Where each client's own loss is least; clients of FedAvg are drawn there."""
        return np.stack([np.linalg.solve(a, b) for a, b in zip(self.hessians, self.linear, strict=True)])

    @property
    def smoothness(self) -> float:
        """L, the norm of the mean Hessian."""
        return float(np.linalg.norm(self.hessian, 2))

    @property
    def hessian_dissimilarity(self) -> float:
        """δ, the largest distance of a client's Hessian from the mean."""
        return max(float(np.linalg.norm(a - self.hessian, 2)) for a in self.hessians)

    def gradient_dissimilarity(self, x: np.ndarray) -> float:
        """G² at x, the mean squared distance of a client's gradient from the mean gradient."""
        gradients = self.hessians @ x - self.linear
        return float(np.mean(np.sum((gradients - gradients.mean(axis=0)) ** 2, axis=1)))

    def loss(self, x: np.ndarray) -> float:
        """The mean loss at x."""
        return float(x @ self.hessian @ x / 2 - self.linear.mean(axis=0) @ x)

    def population(self) -> Population:
        """The clients, one example for each noise vector."""
        clients = {
            f"q{i}": {"a": np.broadcast_to(a, (len(zeta), *a.shape)), "b": b + zeta}
            for i, (a, b, zeta) in enumerate(zip(self.hessians, self.linear, self.noise, strict=True))
        }
        return from_arrays(clients, name="quadratics")

    def problem(self) -> Problem:
        """The loss, starting from zero; the model is `{"x": array[dim]}`."""
        return _problem(self.linear.shape[1])


@functools.cache
def _problem(dim: int) -> Problem:
    def loss(params, batch, key):
        x = params["x"]
        return jnp.einsum("i,nij,j->n", x, batch["a"], x) / 2 - batch["b"] @ x

    def init(key: jax.Array) -> dict[str, jax.Array]:
        return {"x": jnp.zeros(dim)}

    return Problem("quadratic", init, loss)


def quadratics(
    clients: int = 10,
    dim: int = 10,
    smoothness: float = 1.0,
    convexity: float = 0.1,
    hessian_dissimilarity: float = 0.1,
    gradient_dissimilarity: float = 1.0,
    noise: float = 0.0,
    examples: int = 1,
    seed: int = 0,
) -> Quadratics:
    r"""Random quadratics with chosen constants.

    The mean Hessian has eigenvalues from `convexity` to `smoothness` (L), the clients' Hessians differ from it by
    exactly `hessian_dissimilarity` (δ) at most, their gradients at the optimum by `gradient_dissimilarity` (G²) on
    average, and an example's gradient from its client's by `noise` (σ²) on average.
    """
    for name, value in (("clients", clients), ("dim", dim), ("examples", examples)):
        count("quadratics", name, value, least=1)
    count("quadratics", "seed", seed, most=LARGEST_SEED)
    for name, value, accepted in (
        ("smoothness", smoothness, POSITIVE),
        ("convexity", convexity, POSITIVE),
        ("hessian_dissimilarity", hessian_dissimilarity, NON_NEGATIVE),
        ("gradient_dissimilarity", gradient_dissimilarity, NON_NEGATIVE),
        ("noise", noise, NON_NEGATIVE),
    ):
        real("quadratics", name, value, accepted)
    if convexity > smoothness:
        raise ConfigError(f"quadratics: convexity must not exceed smoothness={smoothness}, got {convexity!r}")
    random = np.random.default_rng(seed)
    basis = np.linalg.qr(random.normal(size=(dim, dim)))[0]
    mean = basis @ np.diag(np.linspace(smoothness, convexity, dim)) @ basis.T
    hessians = mean + _scaled(_symmetric(random, clients, dim), hessian_dissimilarity, spectral=True)
    optimum = random.normal(size=dim)
    # gradients at the optimum: A_i x* - b_i = -(deviation of mean zero)
    pull = _scaled(_centred(random.normal(size=(clients, dim))), np.sqrt(gradient_dissimilarity), spectral=False)
    zeta = random.normal(size=(clients, examples, dim))
    zeta = np.stack([_scaled(_centred(z), np.sqrt(noise), spectral=False) for z in zeta])
    return Quadratics(hessians, hessians @ optimum + pull, zeta)


def _symmetric(random: np.random.Generator, clients: int, dim: int) -> np.ndarray:
    raw = random.normal(size=(clients, dim, dim))
    return _centred(raw + np.swapaxes(raw, 1, 2))


def _centred(values: np.ndarray) -> np.ndarray:
    return values - values.mean(axis=0)


def _scaled(values: np.ndarray, size: float, spectral: bool) -> np.ndarray:
    """Scale deviations so that their largest spectral norm, or their root mean square, is `size`."""
    if spectral:
        now = max(np.linalg.norm(v, 2) for v in values)
    else:
        now = np.sqrt(np.mean(np.sum(values**2, axis=-1)))
    return values * (size / now) if now > 1e-12 else values * 0.0
