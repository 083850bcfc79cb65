"""Whether a loss draws random numbers, as dropout does."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Var

from fedmime.engine.cohort import Columns


def draws_random_numbers(loss: Callable[..., Any], model: Any, sample: Columns) -> bool:
    """Whether the loss uses its key, found out by tracing it; the answer is cached for each kind of model and batch."""
    row = {name: jax.ShapeDtypeStruct((1, *a.shape[1:]), jnp.result_type(a)) for name, a in sample.items()}
    leaves, tree = jax.tree.flatten((model, row))
    return _uses_key(loss, tree, tuple((leaf.shape, leaf.dtype) for leaf in leaves))


@functools.lru_cache(maxsize=64)
def _uses_key(loss: Callable[..., Any], tree: Any, kinds: tuple[Any, ...]) -> bool:
    model, batch = jax.tree.unflatten(tree, [jax.ShapeDtypeStruct(*kind) for kind in kinds])
    jaxpr = jax.make_jaxpr(loss)(model, batch, jax.random.key(0)).jaxpr
    key = jaxpr.invars[-1]
    return any(v is key for equation in jaxpr.eqns for v in equation.invars if isinstance(v, Var))
