"""A ridge penalty: its gradient is λx, its loss is what is measured."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedmime as fm
from fedmime.errors import ConfigError

PLAIN = fm.models.logistic(input_shape=(4,), classes=3)
BATCH = {"x": jnp.linspace(-1, 1, 20).reshape(5, 4), "y": jnp.arange(5) % 3}


def test_losses_and_gradients_have_the_penalty() -> None:
    problem, key = fm.models.ridge(PLAIN, 0.3), jax.random.key(0)
    x = jax.tree.map(lambda a: a + 0.1, PLAIN.init(key))
    square = sum(float((leaf**2).sum()) for leaf in jax.tree.leaves(x))
    losses = problem.loss(x, BATCH, key)
    np.testing.assert_allclose(losses, PLAIN.loss(x, BATCH, key) + 0.15 * square, rtol=1e-6)
    np.testing.assert_allclose(problem.metrics(x, BATCH)["loss"][0], losses, rtol=1e-6)
    np.testing.assert_array_equal(problem.metrics(x, BATCH)["accuracy"][0], PLAIN.metrics(x, BATCH)["accuracy"][0])
    plain, penalised = (jax.grad(lambda x, p=p: p.loss(x, BATCH, key).mean())(x) for p in (PLAIN, problem))
    jax.tree.map(lambda a, b, w: np.testing.assert_allclose(b, a + 0.3 * w, atol=1e-6), plain, penalised, x)


def test_the_same_ridge_is_the_same_problem() -> None:
    assert fm.models.ridge(PLAIN, 0.3) is fm.models.ridge(PLAIN, 0.3)
    assert fm.models.ridge(PLAIN, 0.3).name == "logistic, ridge 0.3"


@pytest.mark.parametrize(
    ("problem", "strength", "named"),
    [(PLAIN, -1.0, "strength"), (PLAIN, float("nan"), "strength"), ("logistic", 0.1, "problem")],
)
def test_wrong_arguments_are_named(problem, strength: float, named: str) -> None:
    with pytest.raises(ConfigError, match=f"ridge: {named} must"):
        fm.models.ridge(problem, strength)
