"""Gradients rebuilt from factors against `jax.grad`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedmime.models as fm_models
from fedmime.kernels.lazy import formed
from models import plain

IMAGE = (10, 9, 2)
PROBLEMS = {
    "logistic": fm_models.logistic(IMAGE, 5),
    "mlp": fm_models.mlp(IMAGE, 5, (7, 6, 5, 6)),
    "cnn": fm_models.cnn(IMAGE, 5, 0),
}
KEY = jax.random.key(0)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_exact(name, dtype):
    problem = PROBLEMS[name]
    factors = problem.factors
    assert factors is not None
    batch = plain.images(6, IMAGE, 5, dtype)
    x, y = (plain.cast(plain.start(problem, seed), dtype) for seed in (1, 2))
    weights = jnp.asarray([0.3, 0.1, 0.0, 0.5, 0.1, 0.0], dtype)  # the third and the last are padding

    def gradient(params):
        return jax.grad(lambda p: (weights * problem.loss(p, batch, KEY)).sum())(params)

    @plain.jit
    def run(x, y):
        losses, kept = factors.record(x, batch, KEY)
        rows = jnp.asarray([5, 4, 3, 2, 1, 0])
        turned = {field: array[rows] for field, array in batch.items()}
        kept_turned = jax.tree.map(lambda leaf: leaf[rows], kept)
        mean = factors.mean_grad(kept_turned, turned, weights[rows])
        losses_y, difference = factors.grad_difference(y, batch, kept, weights, KEY)
        again, alone = factors.grad_difference(y, batch, None, weights, KEY)
        return formed(((losses, mean), (losses_y, difference), (again, alone)))

    @plain.jit
    def directly(x, y):
        difference = jax.tree.map(lambda a, b: a - b, gradient(y), gradient(x))
        losses = problem.loss(y, batch, KEY)
        return (problem.loss(x, batch, KEY), gradient(x)), (losses, difference), (losses, gradient(y))

    with jax.numpy_dtype_promotion("strict"):
        ours = run(x, y)
    tolerance = {"float64": 1e-12, "float32": 2e-5}[dtype]
    assert plain.distance(ours, directly(x, y)) < tolerance
    assert all(leaf.dtype == dtype for leaf in jax.tree.leaves(ours))


@pytest.mark.parametrize("name", ["logistic", "mlp"])
def test_difference_at_x_itself_is_zero(name):
    problem = PROBLEMS[name]
    assert problem.factors is not None
    factors, batch, x = problem.factors, plain.images(4, IMAGE, 5), plain.start(problem)

    @plain.jit
    def difference(x):
        kept = factors.record(x, batch, KEY)[1]
        return formed(factors.grad_difference(x, batch, kept, jnp.full(4, 0.25), KEY)[1])

    grads = difference(x)
    assert plain.distance(grads, jax.tree.map(np.zeros_like, grads)) < 1e-14


def test_the_first_layer_keeps_no_input():
    problem = PROBLEMS["mlp"]
    assert problem.factors is not None
    params = jax.eval_shape(problem.init, KEY)
    kept = jax.eval_shape(problem.factors.record, params, plain.images(4, IMAGE, 5), KEY)[1]
    assert sorted(leaf.shape for leaf in jax.tree.leaves(kept)) == sorted(
        [(4, width) for width in (7, 6, 5, 6)] * 2 + [(4, 5)]
    )
    assert np.prod(IMAGE) not in {leaf.shape[1] for leaf in jax.tree.leaves(kept)}


def test_random_and_recurrent_models_have_none():
    assert fm_models.cnn().factors is None
    assert fm_models.cnn(dropout=(0, 0.5)).factors is None
    assert fm_models.char_lstm().factors is None
