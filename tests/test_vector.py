"""Arithmetic of pytrees: entry by entry, in the leaves' own precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedmime.vector import Vector, dot, finite, norm, squared_distance, where, zeros


def _pair(dtype: str) -> tuple[Vector, Vector]:
    random = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(random.normal(size=shape), dtype)
    one, other = (Vector({"w": draw(3, 5), "b": draw(3)}) for _ in range(2))
    return one, other


def _flat(v: Vector) -> np.ndarray:
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(v)])


SUMS = {
    "sum": lambda x, y: x + y,
    "difference": lambda x, y: x - y,
    "product": lambda x, y: x * y,
    "quotient": lambda x, y: x / y,
    "negative": lambda x, y: -x,
    "scaled": lambda x, y: 0.5 * x - y * 2,
    "with numbers": lambda x, y: (1 - x) + (2 / (y * y + 1)) / 3,
}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", SUMS)
def test_arithmetic_goes_entry_by_entry(name: str, dtype: str) -> None:
    x, y = _pair(dtype)
    ours = SUMS[name](x, y)
    assert all(leaf.dtype == dtype for leaf in jax.tree.leaves(ours))
    close = {"float64": 1e-14, "float32": 1e-5}[dtype]
    np.testing.assert_allclose(_flat(ours), SUMS[name](_flat(x), _flat(y)), rtol=close, atol=close)


def test_a_wide_number_does_not_widen_a_model() -> None:
    x, _ = _pair("float32")
    assert (jnp.asarray(0.1, jnp.float64) * x).tree["w"].dtype == jnp.float32


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_finite_is_about_entries_and_not_about_their_squares(dtype: str) -> None:
    x, _ = _pair(dtype)
    largest = float(jnp.finfo(dtype).max)
    cases = [(0.0, True), (largest, True), (-largest, True), (np.inf, False), (-np.inf, False), (np.nan, False)]
    for entry, sound in cases:
        spoiled = {"w": x.tree["w"].at[-1, -1].set(entry), "b": x.tree["b"]}
        assert bool(jax.jit(finite)(spoiled)) == sound
    assert bool(finite(()))
    assert bool(finite({"count": 0, "x": x}))


def test_lengths_and_choices() -> None:
    x, y = _pair("float64")
    np.testing.assert_allclose(norm(x), np.linalg.norm(_flat(x)))
    np.testing.assert_allclose(dot(x, y), _flat(x) @ _flat(y))
    np.testing.assert_allclose(squared_distance(x, y), np.sum((_flat(x) - _flat(y)) ** 2))
    assert norm(zeros(x)) == 0
    for truth, chosen in ((True, x), (False, y)):
        ours = jax.jit(where)(jnp.asarray(truth), x, y)
        np.testing.assert_array_equal(_flat(ours), _flat(chosen))
    assert where(jnp.asarray(False), {"count": 0}, {"count": 3})["count"] == 3
