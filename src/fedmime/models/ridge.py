"""A ridge penalty on any problem, which makes a convex problem strongly convex."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from fedmime.models.problem import Batch, Params, Problem
from fedmime.validation import NON_NEGATIVE, made, real


def ridge(problem: Problem, strength: float) -> Problem:
    r"""The problem with $\frac{\lambda}{2}\|x\|^2$ added to the loss of every example, $\lambda$ being the strength.

    The metric "loss", where the problem has one, includes the penalty, so that it measures what is minimised. The new
    problem has no `factors`, because the gradient of the penalty belongs to no example.
    """
    made("ridge", "problem", problem, Problem, "come from fm.models")
    return _ridge(problem, real("ridge", "strength", strength, NON_NEGATIVE))


@functools.cache
def _ridge(problem: Problem, strength: float) -> Problem:
    """Build the problem. The same arguments return the same object, so that its compiled programs are reused."""

    def penalty(params: Params) -> jax.Array:
        return strength / 2 * jnp.stack([jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves(params)]).sum()

    def loss(params: Params, batch: Batch, key: jax.Array) -> jax.Array:
        return problem.loss(params, batch, key) + penalty(params)

    def metrics(params: Params, batch: Batch) -> dict[str, tuple[jax.Array, jax.Array]]:
        found = problem.metrics(params, batch)
        if "loss" not in found:
            return found
        losses, weights = found["loss"]
        return found | {"loss": (losses + penalty(params), weights)}

    name = f"{problem.name}, ridge {strength:g}"
    return Problem(name, problem.init, loss, metrics, problem.check, chunk=problem.chunk)
