"""The same layers and models as one would first write them in jax, and comparisons of their gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedmime.models.problem import Problem

TOLERANCE = {"float64": 1e-10, "float32": 2e-5}


def dense(x, w, b=None):
    z = jnp.einsum("...i,oi->...o", x, w)
    return z if b is None else z + b


def conv2d(x, w, b=None, padding="VALID"):
    z = lax.conv_general_dilated(x, w, (1, 1), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return z if b is None else z + b


def max_pool2x2(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def lstm(x, w, u, b):
    def step(carry, x):
        h, c = carry
        i, f, g, o = jnp.split(x @ w + h @ u + b, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zero = jnp.zeros((x.shape[1], u.shape[0]), x.dtype)
    return lax.scan(step, (zero, zero), x)[1]


def cross_entropy(logits, labels):
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1)[..., 0]


def mlp(params, batch):
    a = batch["x"].reshape(batch["x"].shape[0], -1)
    for i in range(len(params)):
        a = dense(jax.nn.relu(a) if i else a, **params[f"dense{i}"])
    return cross_entropy(a, batch["y"])


def cnn(params, batch):
    a = jax.nn.relu(conv2d(batch["x"], **params["conv0"]))
    a = max_pool2x2(jax.nn.relu(conv2d(a, **params["conv1"])))
    a = jax.nn.relu(dense(a.reshape(a.shape[0], -1), **params["dense0"]))
    return cross_entropy(dense(a, **params["dense1"]), batch["y"])


def language(params, batch):
    a = params["embedding"][batch["x"].T]
    for i in range(sum(name.startswith("lstm") for name in params)):
        a = lstm(a, **params[f"lstm{i}"])
        if f"project{i}" in params:
            a = dense(a, **params[f"project{i}"])
    losses = cross_entropy(dense(a, **params["dense"]), batch["y"].T)
    return jnp.stack([_mean(losses[:, j], batch["y"][j] != 0) for j in range(batch["y"].shape[0])])


def _mean(values, real):
    return (values * real).sum() / jnp.maximum(real.sum(), 1)


# Compilation is most of these tests' time, and the quick one halves it.
jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


@functools.cache
def start(problem: Problem, seed: int = 0) -> Any:
    return jit(problem.init)(jax.random.key(seed))


def draw(seed: int, *shapes: tuple[int, ...], dtype: str = "float64") -> list[jax.Array]:
    rng = np.random.default_rng(seed)
    return [jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes]


def images(n: int, shape: tuple[int, ...], classes: int, dtype: str = "float64") -> dict[str, jax.Array]:
    rng = np.random.default_rng(n)
    return {"x": jnp.asarray(rng.random((n, *shape)), dtype), "y": jnp.asarray(rng.integers(0, classes, n), jnp.int32)}


def sentences(n: int, length: int, vocabulary: int) -> dict[str, jax.Array]:
    """Sequences of every length from 0 upwards, padded."""
    rng = np.random.default_rng(n)
    tokens = rng.integers(1, vocabulary, (n, length + 1))
    ends = np.arange(n) * length // max(n - 1, 1)
    y = np.where(np.arange(length) < ends[:, None], tokens[:, 1:], 0)
    return {"x": jnp.asarray(tokens[:, :-1], jnp.int32), "y": jnp.asarray(y, jnp.int32)}


def cast(tree: Any, dtype: str) -> Any:
    return jax.tree.map(lambda a: jnp.asarray(np.asarray(a), dtype) if a.dtype.kind == "f" else a, tree)


def distance(ours: Any, theirs: Any) -> float:
    """The largest difference, relative to the largest value of each array (at least 1). In NumPy: nothing compiles."""

    def gap(a: Any, b: Any) -> float:
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        assert a.shape == b.shape
        return float(np.abs(a - b).max() / max(1.0, np.abs(b).max()))

    return max(jax.tree.leaves(jax.tree.map(gap, ours, theirs)))


def value_and_grads(function: Callable[..., jax.Array], *args: Any) -> Any:
    """Outputs and the gradients of a fixed random weighting of them, computed inside a loop of traced length."""

    def once(*args: Any) -> Any:
        out, pull = jax.vjp(function, *args)
        weights = jnp.cos(jnp.arange(out.size, dtype=out.dtype)).reshape(out.shape)
        return out, pull(weights)

    def run(turns: jax.Array, *args: Any) -> Any:
        start = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(once, *args))
        return lax.fori_loop(0, turns, lambda _, __: once(*args), start)

    return jit(run)(1, *args)
