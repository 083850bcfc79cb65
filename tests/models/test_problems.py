"""The five problems against plain jax: losses, gradients, metrics, padding, dropout, caching."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedmime.models as fm_models
from fedmime.models.classification import cotangent, cross_entropy
from fedmime.models.problem import Problem
from models import plain

IMAGE = (10, 9, 2)
CASES = {
    "logistic": (fm_models.logistic(IMAGE, 5), plain.mlp, plain.images(4, IMAGE, 5)),
    "mlp": (fm_models.mlp(IMAGE, 5, (7, 6)), plain.mlp, plain.images(4, IMAGE, 5)),
    "cnn": (fm_models.cnn(IMAGE, 5, 0), plain.cnn, plain.images(4, IMAGE, 5)),
    "char_lstm": (fm_models.char_lstm(11, 3, 6), plain.language, plain.sentences(4, 7, 11)),
    "word_lstm": (fm_models.word_lstm(13, 4, 6), plain.language, plain.sentences(4, 7, 13)),
    "word_lstm, two layers": (fm_models.word_lstm(13, 4, 6, layers=2), plain.language, plain.sentences(4, 7, 13)),
}
KEY = jax.random.key(0)


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, "float64") for name in CASES), *((name, "float32") for name in ("logistic", "mlp", "cnn", "word_lstm"))],
)
def test_losses_and_gradients(name, dtype):
    problem, reference, batch = CASES[name]
    params, batch = plain.cast((plain.start(problem), batch), dtype)
    with jax.numpy_dtype_promotion("strict"):
        ours = plain.value_and_grads(lambda p: problem.loss(p, batch, KEY), params)
    assert all(leaf.dtype == dtype for leaf in jax.tree.leaves(ours))
    theirs = plain.value_and_grads(lambda p: reference(p, batch), params)
    assert plain.distance(ours, theirs) < plain.TOLERANCE[dtype]


def test_shapes_and_types(case):
    problem, _, batch = case
    params = jax.eval_shape(problem.init, KEY)
    assert all(leaf.dtype == jnp.float64 for leaf in jax.tree.leaves(params))
    with jax.enable_x64(False):
        assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(jax.eval_shape(problem.init, KEY)))
    with jax.numpy_dtype_promotion("strict"):  # float32 data meet float64 parameters
        losses = jax.eval_shape(problem.loss, params, plain.cast(batch, "float32"), KEY)
        metrics = jax.eval_shape(problem.metrics, params, plain.cast(batch, "float32"))
    assert {(leaf.shape, leaf.dtype.name) for leaf in jax.tree.leaves((losses, metrics))} == {((4,), "float64")}
    problem.check({name: np.asarray(array) for name, array in batch.items()})


def test_init_is_a_function_of_the_key(case):
    init = plain.jit(case[0].init)
    first, again, other = (init(jax.random.key(seed)) for seed in (1, 1, 2))
    assert plain.distance(first, again) == 0.0
    assert plain.distance(first, other) > 0.0
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(first))


def test_initial_weights_are_glorot_and_biases_zero():
    params = plain.start(fm_models.logistic((50,), 300))["dense0"]
    limit = np.sqrt(6 / 350)
    assert params["w"].shape == (300, 50)
    assert 0.99 * limit < float(jnp.abs(params["w"]).max()) <= limit
    assert not params["b"].any()
    cell = jax.tree.map(np.asarray, plain.start(CASES["char_lstm"][0])["lstm0"])
    np.testing.assert_array_equal(cell["b"].reshape(4, 6)[:, 0], [0, 1, 0, 0])
    np.testing.assert_allclose(cell["u"] @ cell["u"].T, np.eye(6), atol=1e-12)


def test_sizes_of_the_published_models():
    def size(problem: Problem) -> int:
        return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(problem.init, KEY)))

    assert size(fm_models.logistic()) == 784 * 62 + 62
    assert size(fm_models.cnn()) == 1_206_590
    assert size(fm_models.char_lstm(layers=2)) == 90 * 8 + 4 * 256 * (8 + 256 + 1) + 4 * 256 * 513 + 257 * 90
    assert size(fm_models.word_lstm()) == 4_050_748


def test_equal_arguments_give_the_identical_problem():
    assert fm_models.logistic((28, 28, 1), 62) is fm_models.logistic(classes=62)
    assert fm_models.mlp(hidden=[300, 100]) is fm_models.mlp((28, 28, 1), 62)
    assert fm_models.mlp((784,), np.int64(10)) is fm_models.mlp(784, 10)
    assert fm_models.cnn(dropout=[0.25, 0.5]) is fm_models.cnn()
    assert fm_models.cnn(dropout=0) is fm_models.cnn(dropout=(0.0, 0.0))
    assert fm_models.char_lstm(ignore=0) is fm_models.char_lstm(90, 8, 256, 1)
    assert fm_models.word_lstm(ignore=(10003, 10001)) is fm_models.word_lstm()
    assert fm_models.mlp(hidden=()) is not fm_models.logistic()


def test_image_metrics():
    problem, _, batch = CASES["logistic"]
    params = jax.tree.map(np.zeros_like, plain.start(problem))
    params["dense0"]["b"][int(batch["y"][0])] = 9.0
    metrics = plain.jit(problem.metrics)(params, batch)
    np.testing.assert_array_equal(metrics["accuracy"][0], batch["y"] == batch["y"][0])
    np.testing.assert_array_equal(metrics["accuracy"][1], np.ones(4))
    np.testing.assert_allclose(
        metrics["loss"][0], np.where(batch["y"] == batch["y"][0], 0, 9) + np.log(1 + 4 * np.exp(-9))
    )


def test_sequence_metrics_count_real_tokens_only():
    problem = fm_models.word_lstm(vocabulary=9, embedding=2, hidden=3)  # oov = 6, bos = 7, eos = 8
    params = jax.tree.map(np.zeros_like, plain.start(problem))
    params["dense"]["b"][2] = 5.0  # always says 2
    y = jnp.asarray([[2, 2, 3, 8], [2, 6, 8, 0], [0, 0, 0, 0]])
    metrics = plain.jit(problem.metrics)(params, {"x": y, "y": y})
    accuracy, weight = metrics["accuracy"]
    np.testing.assert_allclose(accuracy, [2 / 3, 1, 0])
    np.testing.assert_array_equal(weight, [3, 1, 0])
    loss, tokens = metrics["loss"]
    np.testing.assert_array_equal(tokens, [4, 3, 0])
    hit, miss = np.log(np.exp(5) + 8) - 5, np.log(np.exp(5) + 8)
    np.testing.assert_allclose(loss, [(hit + miss) / 2, (hit + 2 * miss) / 3, 0])
    everything = plain.jit(fm_models.word_lstm(9, 2, 3, ignore=()).metrics)(params, {"x": y, "y": y})
    np.testing.assert_array_equal(everything["accuracy"][1], [4, 3, 0])


def test_more_padding_changes_nothing():
    problem, _, batch = CASES["word_lstm"]
    params = plain.start(problem)
    longer = {name: jnp.pad(array, ((0, 0), (0, 3))) for name, array in batch.items()}
    short, long = (plain.value_and_grads(lambda p, b=b: problem.loss(p, b, KEY), params) for b in (batch, longer))
    assert plain.distance(short, long) < 1e-12
    assert float(short[0][0]) == 0.0  # the first has no target at all


def test_dropout_mask_depends_on_the_key_alone():
    problem = fm_models.cnn(IMAGE, 5)
    batch = CASES["cnn"][2]
    params, loss = plain.start(problem), plain.jit(problem.loss)
    same = loss(params, batch, jax.random.key(1)), loss(params, batch, jax.random.key(1))
    np.testing.assert_array_equal(*same)
    assert plain.distance(same[0], loss(params, batch, jax.random.key(2))) > 1e-6
    # Where all hidden units fire, the last layer's weight gradient is zero exactly where its input was dropped.
    one = {name: array[:1] for name, array in batch.items()}
    gradient = plain.jit(jax.grad(lambda p: problem.loss(p, one, jax.random.key(1)).sum()))
    dead = []
    for shift in (0.0, 0.01):
        y = jax.tree.map(lambda a, s=shift: np.asarray(a) + s, params)
        y["dense0"]["b"] += 5.0
        dead.append(np.asarray(gradient(y)["dense1"]["w"] == 0).all(0))
    np.testing.assert_array_equal(*dead)
    assert 0.3 < dead[0].mean() < 0.7
    still = plain.jit(fm_models.cnn(IMAGE, 5, 0).loss)(params, batch, KEY)
    np.testing.assert_allclose(plain.jit(problem.metrics)(params, batch)["loss"][0], still)


def test_clients_as_a_mapped_axis():
    problem, reference, batch = CASES["cnn"]
    params = jax.tree.map(lambda a, b: np.stack([a, b]), plain.start(problem), plain.start(problem, 1))
    ours = plain.jit(jax.vmap(jax.grad(lambda p: problem.loss(p, batch, KEY).sum())))(params)
    assert plain.distance(ours, plain.jit(jax.vmap(jax.grad(lambda p: reference(p, batch).sum())))(params)) < 1e-10


@pytest.mark.parametrize(
    ("dtype", "labels"), [(jnp.float64, jnp.int64), (jnp.float32, jnp.int32), (jnp.float32, jnp.uint8)]
)
def test_the_cotangent_of_logits_is_the_derivative_of_their_loss(dtype, labels):
    z, y = jax.random.normal(jax.random.key(0), (6, 20), dtype), jnp.asarray([0, 3, 19, 7, 7, 1], labels)
    exact = jax.vmap(jax.value_and_grad(cross_entropy))(z.astype(jnp.float64), y)
    for ours, plain_one in zip((cross_entropy(z, y), cotangent(z, y)), exact, strict=True):
        assert ours.dtype == dtype
        np.testing.assert_allclose(ours, plain_one, atol=1e-12 if dtype == jnp.float64 else 1e-6)
