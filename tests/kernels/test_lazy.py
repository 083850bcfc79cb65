"""Sums that are computed later have the values of sums that are computed at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedmime.kernels import lazy, ops
from fedmime.vector import Vector

OUT, IN, ROWS = 20, 33, 3


def _arrays(seed: int) -> list[jax.Array]:
    """Four matrices [OUT, IN], and the two factors of an outer product."""
    rng = np.random.default_rng(seed)
    shapes = [(OUT, IN)] * 4 + [(ROWS, OUT), (ROWS, IN)]
    return [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]


@pytest.mark.parametrize("with_kernels", [True, False])
def test_a_step_has_the_value_that_it_has_at_once(with_kernels: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not with_kernels:
        monkeypatch.setattr(ops, "usable", lambda *_: False)
    y, c, c_i, m, d, a = _arrays(0)

    def step(y: Vector, gradient: Vector) -> Vector:
        g = gradient + Vector({"w": c}) - Vector({"w": c_i})
        return y - 0.3 * (0.1 * g + Vector({"w": m}))

    @jax.jit
    def later(y: jax.Array) -> jax.Array:
        gradient = lazy.LazyVector({"w": lazy.outer(d, a)})
        return lazy.formed(step(lazy.lazy(Vector({"w": y})), gradient)).tree["w"]

    at_once = step(Vector({"w": y}), Vector({"w": d.T @ a})).tree["w"]
    np.testing.assert_allclose(later(y), at_once, rtol=1e-5, atol=1e-6)


def test_arrays_that_are_added_are_one_term(monkeypatch: pytest.MonkeyPatch) -> None:
    y, c, c_i, m, d, a = _arrays(1)
    seen = []
    monkeypatch.setattr(ops, "add_outer", lambda d, a, terms, after: seen.append(len(terms)) or ops.outer_sum(d, a))
    total = lazy.Sum([(1.0, y)]) - 0.5 * (lazy.Sum([], (d, a)) + c - c_i + m)
    total.formed()
    (lazy.Sum([(1.0, y)]) - 0.5 * (lazy.Sum([], (d, a)) + c)).formed()
    assert seen == [2, 2]
