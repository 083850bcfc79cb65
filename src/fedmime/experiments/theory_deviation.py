r"""Theorem 1 measured: how far a round's step is from the central one, as $\tilde\eta = K\eta$ grows.

A round moves x by $-\tilde\eta\,U(c + e, s)$, where $U(g, s) = D g + u$ for fixed statistics. So
$e = D^{-1}((x - x^+)/\tilde\eta - U(c, s))$ can be read off the step. For Mime the lemma says
$\|e\|^2 \le 18 B^2 L^2 \tilde\eta^2 \|c\|^2$ with $B = \max D$, for MimeLite that with
$\|\nabla f\|^2 + G^2 + \sigma^2/2K$ for $\|c\|^2$. Where U has a momentum part u, $c + D^{-1}u$ stands for c.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedmime import algorithms, optimizers
from fedmime.experiments.theory_landscape import Landscape, landscape
from fedmime.experiments.theory_loop import play, stacked
from fedmime.vector import Vector

STEPS = 10
BASES = {
    "sgd": optimizers.sgd(),
    "momentum": optimizers.momentum(0.9),
    "adagrad": optimizers.adagrad(),
    "rmsprop": optimizers.rmsprop(eps=1e-2),
    "adam": optimizers.adam(eps=1e-2),
}
PROBLEMS = {"quadratic": 0.0, "non-convex": 0.2}


def slope(x: Any, y: Any) -> float:
    """The exponent p of the best fit of y to a multiple of x^p."""
    return float(np.polyfit(np.log(np.asarray(x, float)), np.log(np.asarray(y, float)), 1)[0])


def deviation(problem: str, method: str, base: str, points: int) -> dict[str, Any]:
    """‖e‖ and its bound over a grid of η̃ up to 1/(2BL), all clients taking part for one epoch."""
    land = landscape(0.5, bend=PROBLEMS[problem], clients=10, smallest=1e-2, G2=1.0, sigma2=1.0, examples=STEPS)
    optimizer, x = BASES[base], Vector(land.start)
    everybody = jnp.arange(land.clients)
    c = Vector(land.mean_gradient(land.start))
    s = optimizer.init(x)
    for _ in range(3):  # statistics that have seen gradients
        s = optimizer.track(c, s)
    constant = optimizer.update(Vector(jnp.zeros_like(land.start)), s).tree
    D = optimizer.update(Vector(jnp.ones_like(land.start)), s).tree - constant
    B, L = float(jnp.max(jnp.abs(D))), land.smoothness()
    grid = np.geomspace(1e-3, 1, points) / (2 * B * L)
    make = algorithms.mime if method == "Mime" else algorithms.mime_lite
    candidates = stacked([make(optimizer, float(total) / STEPS) for total in grid])
    moved = _moved(candidates, s, land, everybody)
    central = np.asarray(optimizer.update(c, s).tree)
    e = ((np.asarray(land.start) - moved) / grid[:, None] - central) / np.asarray(D)
    size = _size(method, np.asarray(c.tree) + np.asarray(constant / D), land)
    bound = np.sqrt(18 * size) * B * L * grid
    norms = np.linalg.norm(e, axis=1)
    return {
        "problem": problem,
        "method": method,
        "base": base,
        "eta_tilde": (grid * B * L).tolist(),  # in units of 1/(BL)
        "e": norms.tolist(),
        "bound": bound.tolist(),
        "slope": slope(grid, norms),
        "slope_of_square": slope(grid, norms**2),
        "largest_share_of_bound": float(np.max(norms / bound)),
    }


def _size(method: str, central: np.ndarray, land: Landscape) -> float:
    """What the lemma's bound multiplies: ‖c‖², or with MimeLite the clients' and mini-batches' spread as well."""
    size = float(central @ central)
    if method == "Mime":
        return size
    sigma2 = float(np.mean(np.sum(np.asarray(land.noise) ** 2, axis=2)))
    return size + land.gradient_dissimilarity(np.asarray(land.start)) + sigma2 / (2 * STEPS)


@jax.jit
def _moved_once(algorithm: Any, s: Any, land: Landscape, cohort: jax.Array) -> jax.Array:
    server = algorithm.start(Vector(land.start))._replace(s=s)
    return play(algorithm, server, land, cohort, jnp.zeros_like(cohort), STEPS)[0].x.tree


def _moved(candidates: Any, s: Any, land: Landscape, cohort: jax.Array) -> np.ndarray:
    return np.asarray(jax.vmap(lambda one: _moved_once(one, s, land, cohort))(candidates))
