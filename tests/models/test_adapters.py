"""Problems from flax and equinox modules: the same numbers as ours, dropout by the key, refusals."""

import builtins
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

import fedmime.models as fm_models
from fedmime.errors import ConfigError
from fedmime.models import layers
from models import plain

KEY = jax.random.key(0)
BATCH = plain.images(6, (5,), 3, "float32")


class NnxNet(nnx.Module):
    """Two layers, the second one ours; a list of blocks gives integer names."""

    def __init__(self, *, rngs: nnx.Rngs, rate: float = 0.5):
        self.blocks = nnx.List([nnx.Linear(5, 8, rngs=rngs)])
        self.drop = nnx.Dropout(rate, rngs=rngs)
        self.w = nnx.Param(jax.random.normal(rngs.params(), (3, 8), jnp.float32))

    def __call__(self, x):
        return layers.dense(self.drop(jax.nn.relu(self.blocks[0](x))), self.w[...])


class LinenNet(linen.Module):
    rate: float = 0.5

    @linen.compact
    def __call__(self, x, train: bool):
        a = linen.Dropout(self.rate, deterministic=not train)(jax.nn.relu(linen.Dense(8)(x)))
        w = self.param("w", linen.initializers.lecun_normal(), (3, 8), jnp.float32)
        return layers.dense(a, w)


class EqxNet(eqx.Module):
    first: eqx.nn.Linear
    drop: eqx.nn.Dropout
    w: jax.Array

    def __init__(self, key, rate: float = 0.5):
        self.first = eqx.nn.Linear(5, 8, key=key, dtype=jnp.float32)
        self.drop = eqx.nn.Dropout(rate)
        self.w = jax.random.normal(key, (3, 8), jnp.float32)

    def __call__(self, x, key=None):
        return layers.dense(self.drop(jax.nn.relu(self.first(x)), key=key), self.w)


def problems(rate: float):
    return {
        "nnx": fm_models.from_flax(lambda rngs: NnxNet(rngs=rngs, rate=rate), (5,), 3),
        "linen": fm_models.from_flax(LinenNet(rate), (5,), 3),
        "equinox": fm_models.from_equinox(lambda key: EqxNet(key, rate), (5,), 3),
    }


def hidden_and_output(name, params):
    """The weights as (w [8, 5], b [8], w [3, 8])."""
    if name == "nnx":
        return params["blocks"][0]["kernel"].T, params["blocks"][0]["bias"], params["w"]
    if name == "linen":
        return params["Dense_0"]["kernel"].T, params["Dense_0"]["bias"], params["w"]
    return params.first.weight, params.first.bias, params.w


@pytest.mark.parametrize("name", ["nnx", "linen", "equinox"])
def test_losses_and_gradients(name):
    problem = problems(0.0)[name]
    params = plain.start(problem)

    def reference(params):
        w, b, last = hidden_and_output(name, params)
        return plain.cross_entropy(plain.dense(jax.nn.relu(plain.dense(BATCH["x"], w, b)), last), BATCH["y"])

    ours = plain.value_and_grads(lambda p: problem.loss(p, BATCH, KEY), params)
    assert plain.distance(ours, plain.value_and_grads(reference, params)) < plain.TOLERANCE["float32"]
    metrics = plain.jit(problem.metrics)(params, BATCH)
    np.testing.assert_allclose(metrics["loss"][0], ours[0], rtol=1e-5)
    assert set(metrics) == {"accuracy", "loss"}
    problem.check({field: np.asarray(array) for field, array in BATCH.items()})


@pytest.mark.parametrize("name", ["nnx", "linen", "equinox"])
def test_dropout_follows_the_key_and_rests_in_metrics(name):
    problem, still = problems(0.5)[name], problems(0.0)[name]
    params, loss = plain.start(problem), plain.jit(problem.loss)
    first, again = (loss(params, BATCH, jax.random.key(1)) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert plain.distance(first, loss(params, BATCH, jax.random.key(2))) > 1e-4
    rested = plain.jit(problem.metrics)(params, BATCH)["loss"][0]
    np.testing.assert_allclose(rested, plain.jit(still.loss)(params, BATCH, KEY), rtol=1e-5)
    assert plain.distance(params, plain.start(problem, 1)) > 1e-4


def test_modules_that_hold_weights_start_from_them():
    module = NnxNet(rngs=nnx.Rngs(7))
    weights = fm_models.from_flax(module, (5,), 3).init(KEY)
    np.testing.assert_array_equal(weights["w"], module.w[...])
    net = EqxNet(jax.random.key(7))
    np.testing.assert_array_equal(fm_models.from_equinox(net, (5,), 3).init(KEY).w, net.w)
    assert not module.drop.deterministic  # the user's own module keeps its mode


@pytest.mark.parametrize("module", [NnxNet, lambda r: NnxNet(rngs=r)], ids=["class", "function"])
def test_nnx_classes_and_functions_are_built_with_rngs(module):
    weights = jax.eval_shape(fm_models.from_flax(module, (5,), 3).init, KEY)
    assert {leaf.shape for leaf in jax.tree.leaves(weights)} == {(5, 8), (8,), (3, 8)}


def test_a_loss_of_ones_own():
    def square(outputs, y):
        return ((outputs[:, 0] - y.astype(outputs.dtype)) ** 2).astype(outputs.dtype)

    problem = fm_models.from_flax(LinenNet(0.0), (5,), loss=square)
    params = jax.eval_shape(problem.init, KEY)
    assert jax.eval_shape(problem.loss, params, BATCH, KEY).shape == (6,)
    assert set(jax.eval_shape(problem.metrics, params, BATCH)) == {"loss"}
    problem.check({"x": np.asarray(BATCH["x"]), "y": np.full(6, -3.5)})


class NnxNorm(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.BatchNorm(5, rngs=rngs)

    def __call__(self, x):
        return self.norm(x)


class LinenNorm(linen.Module):
    @linen.compact
    def __call__(self, x, train: bool):
        return linen.BatchNorm(use_running_average=not train)(x)


def eqx_norm(key):
    return eqx.nn.make_with_state(eqx.nn.BatchNorm)(5, "batch", mode="batch")[0]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: fm_models.from_flax(NnxNorm, (5,), 3), "mutable state is not supported, got BatchStat at 'norm.mean'"),
        (lambda: fm_models.from_flax(LinenNorm(), (5,), 3), "mutable state .* 'batch_stats'; use GroupNorm"),
        (lambda: fm_models.from_equinox(eqx_norm, (5,), 3), "mutable state is not supported, got BatchNorm"),
        (lambda: fm_models.from_flax(3, (5,), 3), "module must be an nnx or linen module .* got 3"),
        (lambda: fm_models.from_equinox(3, (5,), 3), "module must be an equinox module .* got 3"),
        (lambda: fm_models.from_flax(lambda rngs: 3, (5,), 3), "must return an nnx module .* got 3"),
        (lambda: fm_models.from_equinox(lambda key: 3, (5,), 3), "must return an equinox module .* got 3"),
        (lambda: fm_models.from_flax(LinenNet(), (5,)), "classes must be a whole number of at least 2, got None"),
        (lambda: fm_models.from_flax(LinenNet(), (5, 0), 3), r"input_shape\[1\] .* got 0"),
        (lambda: fm_models.from_flax(LinenNet(), (5,), 3, loss="l2"), "loss must be 'cross_entropy' or a function"),
    ],
)
def test_refusals(call, words):
    with pytest.raises(ConfigError, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("package", "call"), [("flax", fm_models.from_flax), ("equinox", fm_models.from_equinox)], ids=["flax", "equinox"]
)
def test_a_missing_package_is_named(package, call, monkeypatch):
    genuine = builtins.__import__
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(builtins, "__import__", genuine)
    with pytest.raises(ConfigError, match=rf"{package} is an extra: pip install 'fedmime\[{package}\]'"):
        call(object(), (5,), 3)
