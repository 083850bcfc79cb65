"""Every layer against its plain form: values, gradients in a loop, vmap, second derivatives, float32 and float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedmime.models import layers
from models import plain

CASES = {
    "dense": (layers.dense, plain.dense, [(5, 7), (3, 7), (3,)]),
    "dense of sequences": (layers.dense, plain.dense, [(4, 5, 7), (3, 7), (3,)]),
    "dense of a large batch": (layers.dense, plain.dense, [(40, 7), (3, 7), (3,)]),
    "dense without bias": (layers.dense, plain.dense, [(5, 7), (3, 7)]),
    "conv2d": (layers.conv2d, plain.conv2d, [(2, 6, 7, 3), (3, 3, 3, 4), (4,)]),
    "conv2d of even kernel": (layers.conv2d, plain.conv2d, [(2, 6, 7, 3), (2, 4, 3, 4)]),
    "conv2d to whole vectors": (layers.conv2d, plain.conv2d, [(3, 7, 19, 5), (3, 2, 5, 16), (16,)]),
    "conv2d between whole vectors": (layers.conv2d, plain.conv2d, [(2, 6, 15, 16), (3, 3, 16, 112)]),
    "max_pool2x2": (layers.max_pool2x2, plain.max_pool2x2, [(2, 6, 8, 3)]),
    "max_pool2x2 of odd size": (layers.max_pool2x2, plain.max_pool2x2, [(2, 7, 5, 3)]),
    "lstm": (layers.lstm, plain.lstm, [(6, 3, 4), (4, 20), (5, 20), (20,)]),
    "lstm of many steps": (layers.lstm, plain.lstm, [(33, 3, 4), (4, 20), (5, 20), (20,)]),
    "lstm of whole vectors": (layers.lstm, plain.lstm, [(4, 13, 3), (3, 128), (32, 128), (128,)]),
    "lstm wider than a tile": (layers.lstm, plain.lstm, [(3, 7, 3), (3, 280), (70, 280), (280,)]),
    "lstm of one step": (layers.lstm, plain.lstm, [(1, 2, 4), (4, 20), (5, 20), (20,)]),
}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients(case, dtype):
    ours, theirs, shapes = CASES[case]
    args = plain.draw(0, *shapes, dtype=dtype)
    with jax.numpy_dtype_promotion("strict"):
        result = plain.value_and_grads(ours, *args)
    assert all(leaf.dtype == dtype for leaf in jax.tree.leaves(result))
    assert plain.distance(result, plain.value_and_grads(theirs, *args)) < plain.TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_conv2d_with_padding(size, dtype):
    args = plain.draw(0, (2, 5, 6, 3), (size, size, 3, 16), (16,), dtype=dtype)
    ours = plain.value_and_grads(lambda *a: layers.conv2d(*a, padding="SAME"), *args)
    theirs = plain.value_and_grads(lambda *a: plain.conv2d(*a, padding="SAME"), *args)
    assert plain.distance(ours, theirs) < plain.TOLERANCE[dtype]
    with pytest.raises(ValueError, match="padding must be 'VALID' or 'SAME', got 'FULL'"):
        layers.conv2d(*args, padding="FULL")  # pyright: ignore[reportArgumentType]


KINDS = [
    *((case, "float64") for case in ("dense", "conv2d", "max_pool2x2", "lstm")),
    *((case, "float32") for case in ("conv2d to whole vectors", "lstm")),
]


@pytest.mark.parametrize(("case", "dtype"), KINDS)
def test_under_vmap_of_every_argument(case, dtype):
    ours, theirs, shapes = CASES[case]
    args = plain.draw(1, *((3, *shape) for shape in shapes), dtype=dtype)
    mapped, wanted = (plain.value_and_grads(jax.vmap(layer), *args) for layer in (ours, theirs))
    assert plain.distance(mapped, wanted) < plain.TOLERANCE[dtype]


@pytest.mark.parametrize(("case", "dtype"), KINDS)
def test_hessian_vector_products(case, dtype):
    ours, theirs, shapes = CASES[case]
    args, tangents = (plain.draw(seed, *shapes, dtype=dtype) for seed in (2, 3))

    def product(layer):
        gradient = jax.grad(lambda *a: jnp.sin(layer(*a)).sum(), argnums=tuple(range(len(args))))
        return plain.jit(lambda x, v: jax.jvp(gradient, x, v)[1])(tuple(args), tuple(tangents))

    assert plain.distance(product(ours), product(theirs)) < plain.TOLERANCE[dtype]


def test_pooling_gives_the_gradient_of_equal_values_to_the_first_alone():
    x = jnp.asarray(np.random.default_rng(0).integers(0, 2, (3, 8, 8, 4)), float)
    ours, theirs = (plain.value_and_grads(pool, x) for pool in (layers.max_pool2x2, plain.max_pool2x2))
    assert plain.distance(ours, theirs) == 0.0


@pytest.mark.parametrize("place", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_pooling_keeps_nan(place):
    x = jnp.ones((1, 2, 2, 1)).at[0, place[0], place[1], 0].set(jnp.nan)
    assert jnp.isnan(layers.max_pool2x2(x)).all()


def test_embedding_picks_rows():
    table, tokens = plain.draw(0, (5, 3))[0], jnp.asarray([[0, 4], [2, 2]])
    np.testing.assert_array_equal(layers.embedding(tokens, table), np.asarray(table)[np.asarray(tokens)])
    gradient = jax.grad(lambda t: layers.embedding(tokens, t).sum())(table)
    np.testing.assert_array_equal(gradient[:, 0], [1, 0, 2, 0, 1])


@pytest.mark.parametrize("rate", [0.25, 0.5, 0.1, 0.999])
def test_dropout_keeps_the_mean_and_the_share(rate):
    x = jnp.ones((1000, 101))
    out = layers.dropout(x, rate, jax.random.key(0))
    kept = float((out > 0).mean())
    deviation = np.sqrt(rate * (1 - rate) / x.size)
    assert abs(kept - (1 - rate)) < 5 * deviation + 1e-5
    np.testing.assert_allclose(out[out > 0], 1 / (1 - rate), rtol=1e-2 if rate > 0.99 else 1e-4)
    assert abs(float(out.mean()) - 1) < 6 * deviation / (1 - rate)


def test_dropout_mask_is_a_function_of_the_key():
    x, y = plain.draw(0, (7, 9), (7, 9))
    key = jax.random.key(3)
    zero = [layers.dropout(a, 0.5, key) == 0 for a in (x, y, x.astype("float32"))]
    np.testing.assert_array_equal(zero[0], zero[1])
    np.testing.assert_array_equal(zero[0], zero[2])
    assert (zero[0] != (layers.dropout(x, 0.5, jax.random.key(4)) == 0)).any()
    np.testing.assert_array_equal(layers.dropout(x, 0.0, key), x)
    np.testing.assert_array_equal(layers.dropout(x, 0.5, jax.random.PRNGKey(3)), layers.dropout(x, 0.5, key))


def test_dropout_elements_are_independent():
    masks = jax.vmap(lambda k: layers.dropout(jnp.ones(64), 0.5, k) > 0)(jax.random.split(jax.random.key(0), 4000))
    correlation = np.corrcoef(np.asarray(masks, float).T)
    assert np.abs(correlation - np.eye(64)).max() < 5 / np.sqrt(4000)
