"""The kernels in C against XLA in float64, and what happens where they cannot be had."""

import ctypes
import functools
import itertools
import os
import re
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedmime import native
from fedmime.models.layers import convolution, linear, recurrence
from fedmime.native import library
from fedmime.rows import Rows
from models import plain
from native import threads

needed = pytest.mark.skipif(not native.usable(), reason=f"no kernels here: {native.status()}")
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
    assert _distance(native.convolve(x, w, pads), exact) < CLOSE
    assert _distance(native.kernel_gradient(x, d, pads), pull(jnp.asarray(d, float))[0]) < CLOSE
    each = native.kernel_gradients(x, d, pads)
    one = native.kernel_gradient(x[:1], d[:1], pads)
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
        *[(64, 64, 16), (65, 65, 33), (100, 130, 129), (71, 176, 300), (128, 62, 784), (257, 62, 784)],  # panels
    ],
)
def test_products_of_dense_layers(rows, out, width):
    x, w, d = _draw(5, (rows, width), (out, width), (rows, out))
    assert _distance(native.inner_products(x, w), np.float64(x) @ np.float64(w).T) < CLOSE
    assert _distance(native.outer_sum(d, x), np.float64(d).T @ np.float64(x)) < CLOSE
    assert _distance(native.products(d, w), np.float64(d) @ np.float64(w)) < CLOSE


@needed
@pytest.mark.parametrize("terms", [1, 2, 4])
@pytest.mark.parametrize(
    ("rows", "out", "width"), [(10, 62, 784), (1, 16, 16), (7, 17, 31), (10, 100, 300), (256, 19, 150)]
)
def test_products_added_to_arrays(rows, out, width, terms):
    d, a, e, table, *arrays = _draw(10, (rows, out), (rows, width), (4, out), (9, width), *[(out, width)] * terms)
    places, scales = np.int32([8, 0, 2, 2]), np.float32([1.0, -0.3, 0.0, 2.0][:terms])
    arrays[-1][0, 0] = 7.0
    whole = [float(s) * np.float64(t) for s, t in zip(scales, arrays, strict=True)]
    exact = np.float64(d).T @ np.float64(a) + sum(whole)
    before = [array.copy() for array in arrays]
    assert _distance(native.add_outer(d, a, scales, arrays, after=(e,)), exact) < CLOSE
    more = native.add_outer(d, a, scales, arrays, more=(e, table, places))
    assert _distance(more, exact + np.float64(e).T @ np.float64(table[places])) < CLOSE
    np.testing.assert_array_equal(arrays, before)  # the caller's own arrays are not written over


@needed
@pytest.mark.parametrize(
    ("batch", "steps", "out", "width", "most"),
    [
        *[(10, 3, 62, 784, 30), (4, 1, 16, 16, 4), (7, 5, 17, 33, 64), (32, 9, 20, 90, 300)],
        *[(batch, 320 // batch, 33, 20, 320) for batch in (4, 6, 7, 10)],  # more rows than are gone through at once
    ],
)
def test_products_in_dual_form(batch, steps, out, width, most):
    count = batch * steps
    table, v, d = _draw(12, (400, width), (out, width), (most, out))
    places = np.random.default_rng(2).integers(0, 400, 350, np.int32)
    chosen = np.float64(table[places[20 : 20 + count]])
    rows, along, room = native.dual_begin(table, places, 20, count, native.panels(v), out, most)
    np.testing.assert_array_equal(rows[:count], chosen)
    assert _distance(along[:count], chosen @ np.float64(v).T) < CLOSE
    assert rows.shape == (most, width)
    assert along.shape == room.shape == (most, out)
    for place in range(0, count, batch):
        exact = chosen[place : place + batch] @ chosen[:place].T @ np.float64(d[:place])
        products = native.dual_products(rows, d, np.int32(place), batch)
        assert _distance(products, exact) < CLOSE if place else not np.any(products)
    for some in (count, batch, 0):
        exact = np.float64(d[:some]).T @ chosen[:some] - 0.3 * np.float64(v)
        assert _distance(native.dual_sum(np.int32(some), d, rows, np.float32([-0.3]), [v]), exact) < CLOSE


@needed
def test_products_added_in_place_step_by_step():
    d, a, y, m = _draw(11, (10, 17), (10, 31), (17, 31), (17, 31))
    g = np.float64(d).T @ np.float64(a)
    for terms, step in (([], g), ([m], g - 0.3 * np.float64(m))):
        scales = jnp.float32([1.0, -0.3][: 1 + len(terms)])
        add = functools.partial(native.add_outer, d, a, scales)
        steps = jax.jit(lambda y, add=add, terms=terms: jax.lax.fori_loop(0, 5, lambda _, y: add([y, *terms]), y))
        assert _distance(steps(y), np.float64(y) + 5 * step) < CLOSE


def _entropies(z, labels):
    """Losses and derivatives in float64."""
    z = np.float64(z)
    e = np.exp(z - z.max(axis=1, keepdims=True))
    total = e.sum(axis=1, keepdims=True)
    hot = np.arange(z.shape[1]) == labels[:, None]
    losses = z.max(axis=1) + np.log(total[:, 0]) - np.where(hot, z, 0).sum(axis=1)
    return losses, e / total - hot


@needed
@pytest.mark.parametrize(
    ("rows", "classes", "size"),
    [(10, 62, 1.0), (1, 2, 5.0), (7, 16, 30.0), (5, 17, 100.0), (3, 31, 1e4), (300, 10, 1e-3), (2, 1, 1.0)],
)
def test_cross_entropy_and_its_derivative(rows, classes, size):
    (z,), labels = _draw(14, (rows, classes)), np.arange(rows, dtype=np.int32) % classes
    z *= size
    z[0, 0] -= 200.0  # e to the power of that is no normal number
    losses, d = native.cross_entropy(z, labels)
    exact_losses, exact = _entropies(z, labels)
    assert np.abs(losses - exact_losses).max() < CLOSE * (1 + np.abs(z).max())
    assert np.abs(d - exact).max() < CLOSE


@needed
def test_cross_entropy_of_labels_that_are_no_class():
    """As without the kernel: nothing is picked."""
    (z,), labels = _draw(15, (3, 20)), np.int32([-1, 20, 4])
    losses, d = native.cross_entropy(z, labels)
    exact_losses, exact = _entropies(z, labels)
    assert _distance(losses, exact_losses) < CLOSE
    assert _distance(d, exact) < CLOSE


@needed
@pytest.mark.parametrize("classes", [5, 16, 62])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_cross_entropy_of_what_is_not_finite_is_not(classes, value):
    for place in (0, classes // 2, classes - 1):
        z = np.zeros((2, classes), np.float32)
        z[0, place] = value
        losses, d = native.cross_entropy(z, np.int32([1, 1]))
        assert not np.isfinite(losses[0])
        assert not np.isfinite(d[0]).all()
        assert np.isfinite(losses[1])
        assert np.isfinite(d[1]).all()


@needed
@pytest.mark.parametrize("size", [1, 63, 64, 1000, 100_003])
def test_sums_over_arrays(size):
    a, b, c = _draw(12, (size,), (size,), (size,))
    exact = np.float64(a) - 0.5 * np.float64(b)
    assert _distance(native.weighted_sum(jnp.float32([1.0, -0.5]), a, b), exact) < CLOSE
    spoilt = np.full_like(c, np.nan)
    for scales, arrays in (([1.0, 0.0, -0.5], (a, spoilt, b)), ([0.0, 1.0, -0.5], (spoilt, a, b))):
        assert _distance(native.weighted_sum(jnp.float32(scales), *map(jnp.asarray, arrays)), exact) < CLOSE
    assert abs(native.dot(a, b) - np.float64(a) @ np.float64(b)) < CLOSE * (np.float64(a) @ np.float64(a) + 1)
    apart = np.sum((np.float64(a) - np.float64(b)) ** 2)
    assert abs(native.squared_distance(a, b) - apart) < CLOSE * (apart + 1)
    for truth, chosen in ((True, a), (False, b)):
        ours = jax.jit(native.choose)(jnp.asarray(truth), jnp.asarray(a), jnp.asarray(b))
        assert np.asarray(ours).tobytes() == np.asarray(chosen).tobytes()


@needed
@pytest.mark.parametrize("shape", [(9, 3), (9, 5, 7), (9, 3, 3, 4, 32)])
def test_rows_are_added_up(shape):
    table, weights = _draw(13, shape, (4,))
    places = jnp.asarray([8, 0, 2, 2], jnp.int32)
    exact = np.tensordot(np.float64(weights), np.float64(table[np.asarray(places)]), axes=1)
    assert _distance(native.weighted_rows(table, places, weights), exact) < CLOSE


@needed
def test_tables_of_one_shape_are_apart():
    def fill():
        first, second = (native.unfilled((3, 5), jnp.float32, i) for i in range(2))
        return first.at[:].set(1.0), second.at[:].set(2.0)

    first, second = jax.jit(fill)()
    assert (first == 1).all()
    assert (second == 2).all()
    assert native.unfilled((2,), jnp.float64).dtype == jnp.float64


@needed
def test_rows_are_taken_as_they_are():
    table = np.float32(np.random.default_rng(6).normal(size=(9, 3, 5)))
    table[2, 1, 1] = np.nan
    places = jnp.asarray([8, 0, 2, 2], jnp.int32)
    np.testing.assert_array_equal(native.take(table, places), table[np.asarray(places)])
    assert "fedmime_take" in jax.jit(native.take).lower(table, places).as_text()
    for other in (np.arange(9), table.astype(float)):  # left to XLA
        np.testing.assert_array_equal(native.take(jnp.asarray(other), places), other[np.asarray(places)])


@needed
@pytest.mark.parametrize("hidden", [1, 16, 70, 256])
@pytest.mark.parametrize(("time", "batch"), [(1, 1), (9, 10), (4, 23)])
def test_recurrence(time, batch, hidden):
    z, u, b, d = _draw(2, (time, batch, 4 * hidden), (hidden, 4 * hidden), (4 * hidden,), (time, batch, hidden))
    u /= np.sqrt(hidden)
    exact = recurrence._unroll_xla(*(jnp.asarray(a, float) for a in (z, u, b)))
    ours = jax.jit(native.lstm_forward)(z, u, b)
    for mine, theirs in zip(ours, exact, strict=True):
        assert _distance(mine, np.asarray(theirs)) < CLOSE
    _, c, gates = exact
    dz = recurrence._unroll_backward_xla(jnp.asarray(d, float), gates, c, jnp.asarray(u, float))
    mine = native.lstm_backward(d, jnp.float32(gates), jnp.float32(c), u)
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
    return np.split(np.asarray(native.lstm_forward(jnp.tile(sums, 4)[None], u, b)[2])[0], 4, axis=-1)


def _added(d, a, y, more):
    return linear.OuterSum(d, a, (), more).formed(1.0, [(1.0, y)])


PLACES = np.arange(3, dtype=np.int32)
MISMATCHED = {
    "dense": (linear.dense, [(4, 20), (16, 24)]),
    "sum of outer products": (linear.outer_sum, [(8, 16), (3, 16)]),
    "more rows": (
        lambda d, a, e, t, y: _added(d, a, y, (e, Rows(t, PLACES))),
        [(4, 16), (4, 20), (2, 16), (5, 20), (16, 20)],
    ),
    "rows of another width": (
        lambda d, a, e, t, y: _added(d, a, y, (e, Rows(t, PLACES))),
        [(4, 16), (4, 20), (3, 16), (5, 19), (16, 20)],
    ),
    "weights of rows": (lambda t, w: Rows(t, PLACES).weighted(w), [(5, 20), (2,)]),
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
        np.testing.assert_array_equal(np.isposinf(native.inner_products(many, w)), np.isposinf(many @ w.T))
    z = np.zeros((2, 1, 64), np.float32)
    z[0, 0, 16] = np.nan  # a forget gate of the first step, which has nothing to forget
    h = native.lstm_forward(z, np.zeros((16, 64), np.float32), np.zeros(64, np.float32))[0]
    assert np.isnan(h[:, 0, 0]).all()


@needed
def test_the_layers_use_them():
    x, w, a, v = _draw(3, (2, 6, 6, 3), (3, 3, 3, 16), (10, 16), (16, 16))
    z, u, b = _draw(4, (2, 1, 64), (16, 64), (64,))
    many = np.ones((40, 16), np.float32)
    products = [(linear.dense, (a, v)), (linear.outer_sum, (a, v[:10])), (linear.passed_on, (a, v))]
    products += [(linear.dense, (many, v)), (linear.outer_sum, (many, many)), (linear.passed_on, (many, v))]
    for layer, args in ((convolution.conv2d, (x, w)), (recurrence._unroll, (z, u, b)), *products):
        assert "fedmime_" in jax.jit(layer).lower(*args).as_text()


@needed
@pytest.mark.skipif(b"avx512f" not in library._cpu(), reason="this CPU's vectors are the shorter ones")
def test_on_a_cpu_with_shorter_vectors(tmp_path):
    compiler = tmp_path / "cc"
    compiler.write_text(f'#!/bin/sh\nexec {library._compiler()} "$@" -mno-avx512f\n')
    compiler.chmod(0o755)
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib", __file__]
    kernels = "convolution_and or products_ or entropy or sums_over or added_up or recurrence or gates_open"
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
    found = library._load.__wrapped__()
    assert isinstance(found, str)
    assert re.match(said, found)


@needed
@pytest.mark.parametrize("core", [-1, 0, 1, 5000])
def test_a_thread_that_goes_to_a_core_may_leave_it_again(core):
    """Whatever core is named: the number is the same, and no thread is bound."""
    places = np.int32(core)
    counted = jax.jit(lambda trips: jax.lax.fori_loop(0, trips, lambda k, n: n + native.settled(k, places), 0))
    assert counted(np.int32(10)) == 45
    with native.beside(2):
        native.give_way()
    assert {frozenset(cores) for cores in threads.cores()} == {frozenset(os.sched_getaffinity(0))}


@needed
@pytest.mark.skipif(len(jax.devices()) < 2, reason="needs two devices")
def test_threads_that_take_cores_for_two_loops_of_a_run_are_bound_after_none():
    on, spec = jax.sharding.Mesh(np.asarray(jax.devices()[:2]), ("device",)), jax.sharding.PartitionSpec("device")

    def both(places):
        total = jnp.zeros((), jnp.int32)
        for _ in range(2):
            trips = 10 + 0 * total  # the second loop comes after the first
            total = jax.lax.fori_loop(0, trips, lambda k, n: n + native.settled(k, places[0]), total)
        return native.total(places[0], 2, [total[None]])[0]

    run = jax.jit(jax.shard_map(both, mesh=on, in_specs=spec, out_specs=spec, check_vma=False))
    for _ in range(5):
        np.testing.assert_array_equal(run(np.arange(2, dtype=np.int32)), [180, 180])
    assert {frozenset(cores) for cores in threads.cores()} == {frozenset(os.sched_getaffinity(0))}


@needed
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_what_works_beside_devices_goes_from_core_to_core():
    core = ctypes.CDLL(None).sched_getcpu

    def visited(times=30):
        found = []
        for _ in range(times):
            time.sleep(0.002)
            native.give_way()
            found.append(core())
        return found

    with native.beside(2):
        cores = visited()
    assert sum(a != b for a, b in itertools.pairwise(cores)) > 24  # the system may move it, too
    assert set(cores) <= os.sched_getaffinity(0)
