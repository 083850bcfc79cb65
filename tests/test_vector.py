"""Sums of vectors that are written down and formed in one go."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedmime.models.layers import OuterSum, Rows
from fedmime.vector import Vector, distance, dot, finite, norm, where, zeros

SHAPES = {"small": (3, 5), "large": (200, 300)}  # XLA's and the kernels'


def _parts(size, dtype):
    random = np.random.default_rng(0)
    out, width = SHAPES[size]
    draw = lambda *shape: jnp.asarray(random.normal(size=shape), dtype)
    x, m, c = (Vector({"w": draw(out, width), "b": draw(out)}) for _ in range(3))
    pairs = (
        OuterSum(draw(4, out), draw(4, width)),
        OuterSum(
            draw(4, out), draw(4, width), (), (draw(2, out), Rows(draw(9, width), jnp.asarray([8, 3], jnp.int32)))
        ),
    )
    late = [{"w": pair, "b": draw(out)} for pair in pairs]
    return x, m, c, late


STEPS = {
    "SGD": lambda x, m, c, g, h: x - 0.1 * g,
    "momentum": lambda x, m, c, g, h: x - 0.1 * (0.9 * m + (1 - 0.9) * g),
    "a control variate": lambda x, m, c, g, h: x - 0.1 * (g - m + c),
    "many terms": lambda x, m, c, g, h: x + m + c + x + m + c - g,
    "two gradients": lambda x, m, c, g, h: c - (g - h / 3) * 2,
    "by entries": lambda x, m, c, g, h: x - 0.1 * (m + c * g),
    "alone": lambda x, m, c, g, h: -g,
    "a number": lambda x, m, c, g, h: (1 - g) + (2 / (h * h + 1)),
}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("size", SHAPES)
@pytest.mark.parametrize("step", STEPS)
def test_formed_late_is_formed_right(step, size, dtype):
    x, m, c, late = _parts(size, dtype)

    def run(pend):
        g, h = (Vector.pending(tree) for tree in late)
        return STEPS[step](x, m, c, *((g, h) if pend else (Vector(g.tree), Vector(h.tree)))).tree

    ours, plain = run(True), run(False)
    for name in plain:
        assert ours[name].dtype == dtype
        close = {"float64": 1e-13, "float32": 2e-5}[dtype]
        np.testing.assert_allclose(ours[name], plain[name], rtol=close, atol=close)


def test_a_pending_vector_is_a_vector():
    x, *_, late = _parts("large", "float32")

    def walk(x):
        y = jax.lax.fori_loop(0, 3, lambda _, y: y - 0.1 * Vector.pending(late[0]), x)
        moved = Vector.pending(y.tree) - x
        return where(norm(moved) > 0, moved, zeros(moved)), dot(moved, moved)

    moved, length = jax.jit(walk)(x)
    g = Vector.pending(late[0])
    np.testing.assert_allclose(moved.tree["w"], -0.3 * g.tree["w"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(length, 0.09 * dot(g, g), rtol=1e-5)
    assert g.tree is g.tree  # formed once


def test_a_pending_vector_looked_at_in_a_branch_is_still_there_outside():
    x, *_, late = _parts("small", "float64")

    def walk(x):
        g = Vector.pending(late[0])
        length = jax.lax.cond(dot(x, x) > 0, lambda: dot(g, g), lambda: jnp.zeros(()))
        return x - length * g

    g = Vector(Vector.pending(late[0]).tree)
    np.testing.assert_allclose(jax.jit(walk)(x).tree["w"], (x - dot(g, g) * g).tree["w"], rtol=1e-12)


@pytest.mark.parametrize("size", SHAPES)
def test_what_counts_nothing_may_be_nan(size):
    x = _parts(size, "float32")[0]
    spoilt = x.map(lambda leaf: leaf * jnp.nan)
    total = x + jnp.zeros(()) * Vector.pending(spoilt.tree)
    np.testing.assert_array_equal(total.tree["w"], x.tree["w"])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("size", SHAPES)
def test_finite_is_about_entries_and_not_about_their_squares(size, dtype):
    x, *_ = _parts(size, dtype)
    largest = float(jnp.finfo(dtype).max)
    for entry, sound in (
        (0.0, True),
        (largest, True),
        (-largest, True),
        (np.inf, False),
        (-np.inf, False),
        (np.nan, False),
    ):
        spoiled = {"w": x.tree["w"].at[-1, -1].set(entry), "b": x.tree["b"]}
        assert bool(jax.jit(finite)(spoiled)) == sound
    assert bool(finite(()))
    assert bool(finite({"count": 0, "x": x}))
    assert where(jnp.asarray(False), {"count": 0}, {"count": 3})["count"] == 3


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("size", SHAPES)
def test_lengths_and_choices(size, dtype):
    x, y, *_ = _parts(size, dtype)
    flat = [np.concatenate([np.asarray(v.tree[n], np.float64).ravel() for n in ("w", "b")]) for v in (x, y)]
    np.testing.assert_allclose(distance(x, y), np.linalg.norm(flat[0] - flat[1]), rtol=1e-5)
    np.testing.assert_allclose(norm(x), np.linalg.norm(flat[0]), rtol=1e-5)
    for truth, chosen in ((True, x), (False, y)):
        ours = jax.jit(where)(jnp.asarray(truth), x, y)
        assert all(np.array_equal(ours.tree[n], chosen.tree[n]) for n in ("w", "b"))


def test_a_vector_taken_off_a_sum_leaves_no_rounding():
    """x + d - x is d to the last digit, where d is far smaller than x."""
    x, d = Vector({"w": jnp.full(3, 1e4, jnp.float32)}), Vector({"w": jnp.full(3, 1.2345e-3, jnp.float32)})
    np.testing.assert_array_equal((Vector.pending(x.tree) + d - x).tree["w"], d.tree["w"])
    np.testing.assert_array_equal((2.0 * (Vector.pending(x.tree) - x)).tree["w"], 0)
    y = Vector.pending(x.tree) + 0.0 * Vector.pending(d.tree)
    assert [scale for scale, _ in (jnp.ones(()) * y + d).parts][1:] == [1.0]
    assert len((y + d).parts) == 2
