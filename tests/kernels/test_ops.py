"""The kernels in C against XLA in float64, and what happens where they cannot be had."""

import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedmime.kernels import build, ops
from fedmime.models.layers import convolution, linear, recurrence
from models import plain

needed = pytest.mark.skipif(not build.available(), reason=f"no kernels here: {build.status()}")
CLOSE = 3e-6

SHAPES = {  # images, kernel, padding
    "the CNN's first": ((3, 28, 28, 1), (3, 3, 1, 32), 0),
    "the CNN's second": ((2, 26, 26, 32), (3, 3, 32, 64), 0),
    "7 vectors wide": ((2, 9, 9, 48), (3, 3, 48, 112), 0),
    "padded": ((2, 9, 13, 5), (3, 5, 5, 16), 1),
    "of one pixel": ((1, 1, 1, 3), (1, 1, 3, 16), 0),
    "a product of matrices": ((1, 37, 1, 70), (1, 1, 70, 48), 0),
}


def _draw(seed, *shapes):
    random = np.random.default_rng(seed)
    return [random.normal(size=shape).astype(np.float32) for shape in shapes]


def _distance(ours, exact):
    assert ours.dtype == jnp.float32
    assert ours.shape == exact.shape
    return np.abs(np.asarray(ours, float) - exact).max() / np.abs(exact).max()


@needed
@pytest.mark.parametrize("case", SHAPES)
def test_convolution_and_kernel_gradients(case):
    images, kernel, pad = SHAPES[case]
    pads = ((pad, pad), (pad, pad))
    x, w = _draw(0, images, kernel)
    exact, pull = jax.vjp(lambda w: plain.conv2d(jnp.asarray(x, float), w, padding=pads), jnp.asarray(w, float))
    (d,) = _draw(1, exact.shape)
    assert _distance(ops.convolve(x, w, pads), exact) < CLOSE
    assert _distance(ops.kernel_gradient(x, d, pads), pull(jnp.asarray(d, float))[0]) < CLOSE
    each = ops.kernel_gradients(x, d, pads)
    one = ops.kernel_gradient(x[:1], d[:1], pads)
    np.testing.assert_array_equal(each[0], one)
    assert _distance(each.sum(0), pull(jnp.asarray(d, float))[0]) < CLOSE


@needed
@pytest.mark.parametrize(
    ("rows", "out", "width"),
    [
        *[(10, 62, 784), (1, 16, 16), (7, 17, 31), (32, 100, 300), (13, 19, 64)],
        *[(25, 18, 2100), (3, 17, 1030), (10, 300, 784), (20, 530, 37)],  # wider than what is gone through at once
        *[(100, 17, 90), (256, 62, 90), (257, 17, 90), (270, 21, 300), (270, 21, 1100), (300, 300, 21)],  # many rows
        *[(33, 1, 3), (40, 1030, 5), (97, 8, 1040)],  # narrow
        *[(64, 64, 16), (65, 65, 33), (100, 130, 129), (71, 176, 300), (128, 62, 784), (257, 62, 784)],
    ],
)
def test_products_of_dense_layers(rows, out, width):
    x, w, d = _draw(5, (rows, width), (out, width), (rows, out))
    assert _distance(ops.inner_products(x, w), np.float64(x) @ np.float64(w).T) < CLOSE
    assert _distance(ops.outer_sum(d, x), np.float64(d).T @ np.float64(x)) < CLOSE


@needed
def test_rows_are_taken_as_they_are():
    table = np.float32(np.random.default_rng(6).normal(size=(9, 3, 5)))
    table[2, 1, 1] = np.nan
    places = jnp.asarray([8, 0, 2, 2], jnp.int32)
    np.testing.assert_array_equal(ops.take(table, places), table[np.asarray(places)])
    assert "fedmime_take" in jax.jit(ops.take).lower(table, places).as_text()
    for other in (np.arange(9), table.astype(float)):  # left to XLA
        np.testing.assert_array_equal(ops.take(jnp.asarray(other), places), other[np.asarray(places)])


@needed
@pytest.mark.parametrize("hidden", [1, 16, 70, 256])
@pytest.mark.parametrize(("time", "batch"), [(1, 1), (9, 10), (4, 23)])
def test_recurrence(time, batch, hidden):
    z, u, b, d = _draw(2, (time, batch, 4 * hidden), (hidden, 4 * hidden), (4 * hidden,), (time, batch, hidden))
    u /= np.sqrt(hidden)
    exact = recurrence._unroll_xla(*(jnp.asarray(a, float) for a in (z, u, b)))
    ours = jax.jit(ops.lstm_forward)(z, u, b)
    for mine, theirs in zip(ours, exact, strict=True):
        assert _distance(mine, np.asarray(theirs)) < CLOSE
    _, c, gates = exact
    dz = recurrence._unroll_backward_xla(jnp.asarray(d, float), gates, c, jnp.asarray(u, float))
    mine = ops.lstm_backward(d, jnp.float32(gates), jnp.float32(c), u)
    assert _distance(mine, np.asarray(dz)) < CLOSE


@needed
def test_gates_open_to_the_last_digits_and_keep_what_is_not_finite():
    sums = np.concatenate([np.linspace(-30, 30, 4001), np.logspace(-30, 3, 1998), [0.0]])
    sums = np.float32([*sums, *-sums, *[np.inf, -np.inf] * 8]).reshape(-1, 16)
    i, f, g, o = _gates(sums)
    exact = 0.5 + 0.5 * np.tanh(0.5 * np.float64(sums))
    for gate in (i, f, o):
        np.testing.assert_allclose(gate, exact, rtol=0, atol=1.2e-7)
    np.testing.assert_allclose(g, np.tanh(np.float64(sums)), rtol=3e-7, atol=0)
    assert np.isnan(_gates(np.full((1, 16), np.nan, np.float32))).all()


def _gates(sums):
    """The four gates of units whose gates all have these sums."""
    hidden = sums.shape[1]
    u, b = jnp.zeros((hidden, 4 * hidden), jnp.float32), jnp.zeros(4 * hidden, jnp.float32)
    return np.split(np.asarray(ops.lstm_forward(jnp.tile(sums, 4)[None], u, b)[2])[0], 4, axis=-1)


MISMATCHED = {
    "dense": (linear.dense, [(4, 20), (16, 24)]),
    "sum of outer products": (linear.outer_sum, [(8, 16), (3, 16)]),
    "channels": (convolution.conv2d, [(2, 8, 8, 3), (3, 3, 5, 16)]),
    "width of the gates": (recurrence.lstm, [(3, 2, 5), (5, 32), (16, 64), (64,)]),
    "hidden units": (recurrence.lstm, [(3, 2, 5), (5, 64), (16, 48), (64,)]),
}


@needed
@pytest.mark.parametrize("case", MISMATCHED)
def test_shapes_that_do_not_match_never_reach_a_kernel(case):
    layer, shapes = MISMATCHED[case]
    with pytest.raises((TypeError, ValueError)):
        layer(*_draw(7, *shapes))


@needed
def test_a_kernel_larger_than_the_image_gives_no_pixels():
    x, w = _draw(8, (2, 2, 2, 3), (4, 4, 3, 16))
    assert convolution.conv2d(x, w).shape == (2, 0, 0, 16)


@needed
def test_what_is_not_finite_stays_what_it_is():
    x, w = _draw(9, (3, 19), (16, 19))
    x, w = np.abs(x), w.copy()
    w[5, 7] = np.inf  # read twice: in the last whole vector, and in the one that overlaps it
    for times in (1, 30):
        many = np.tile(x, (times, 1))
        np.testing.assert_array_equal(np.isposinf(ops.inner_products(many, w)), np.isposinf(many @ w.T))
    z = np.zeros((2, 1, 64), np.float32)
    z[0, 0, 16] = np.nan  # a forget gate of the first step, which has nothing to forget
    h = ops.lstm_forward(z, np.zeros((16, 64), np.float32), np.zeros(64, np.float32))[0]
    assert np.isnan(h[:, 0, 0]).all()


@needed
def test_the_layers_use_them():
    x, w, a, v = _draw(3, (2, 6, 6, 3), (3, 3, 3, 16), (10, 16), (16, 16))
    z, u, b = _draw(4, (2, 1, 64), (16, 64), (64,))
    many = np.ones((40, 16), np.float32)
    products = [(linear.dense, (a, v)), (linear.outer_sum, (a, v[:10]))]
    products += [(linear.dense, (many, v)), (linear.outer_sum, (many, many))]
    for layer, args in ((convolution.conv2d, (x, w)), (recurrence._unroll, (z, u, b)), *products):
        assert "fedmime_" in jax.jit(layer).lower(*args).as_text()


@needed
@pytest.mark.skipif(b"avx512f" not in build._cpu(), reason="this CPU's vectors are the shorter ones")
def test_on_a_cpu_with_shorter_vectors(tmp_path):
    compiler = tmp_path / "cc"
    compiler.write_text(f'#!/bin/sh\nexec {build._compiler()} "$@" -mno-avx512f\n')
    compiler.chmod(0o755)
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib", __file__]
    kernels = "convolution_and or products_ or recurrence or gates_open"
    chosen = ["-k", kernels, "-rs"]
    places = {"CC": str(compiler), "FEDMIME_CACHE": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")} | places
    done = subprocess.run([*words, *chosen], env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout
    assert "skipped" not in done.stdout
    assert list((tmp_path / "native").glob("*.so"))


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"FEDMIME_NATIVE": "0"}, r"off \(FEDMIME_NATIVE=0\)"),
        ({"CC": "false"}, r"off \(false failed: .*exit status 1"),
        ({"CC": "no-such-compiler"}, r"off \(no-such-compiler failed: .*No such file"),
    ],
)
def test_without_kernels_the_reason_is_told(monkeypatch, environment, said):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found = build._load("linear")
    assert not found.loaded
    assert re.match(said, found.told)
