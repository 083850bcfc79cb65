"""The Gaussian mechanism: noise of the size that the accountant assumes; a clipping norm that finds its quantile."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedmime.aggregation.accounting import Ledger, Sampling, epsilon
from fedmime.aggregation.clipping import Clip
from fedmime.aggregation.encoder import GRADIENT, UPDATE
from fedmime.aggregation.privacy import gaussian
from fedmime.errors import ConfigError

DRAWS = 4000


@functools.partial(jax.jit, static_argnames="kind")
def _noise(mechanism, key, kind, norm, denominator):
    message = {"w": jnp.zeros((2, 3)), "b": jnp.zeros(2, jnp.float32)}
    keys = jax.random.split(key, DRAWS)
    return jax.vmap(lambda own: mechanism.add_noise(message, own, kind, norm, denominator))(keys)


@pytest.mark.parametrize(("z", "norm", "m"), [(1.0, 1.0, 10), (0.5, 3.0, 4)])
def test_noise_has_the_deviation_z_times_the_norm_over_the_denominator(z: float, norm: float, m: int) -> None:
    noise = _noise(gaussian(norm, z), jax.random.key(3), UPDATE, norm, m)
    assert noise["b"].dtype == jnp.float32
    flat = np.concatenate([np.asarray(noise["w"]).reshape(DRAWS, -1), np.asarray(noise["b"], np.float64)], axis=1)
    expected = z * norm / m
    np.testing.assert_allclose(flat.mean(0), 0, atol=5 * expected / math.sqrt(DRAWS))
    np.testing.assert_allclose(flat.std(0), expected, rtol=0.06)  # five standard errors
    np.testing.assert_allclose(np.corrcoef(flat.T), np.eye(8), atol=5 / math.sqrt(DRAWS))
    assert (flat**4).mean() == pytest.approx(3 * expected**4, rel=0.1)


def test_updates_and_gradients_have_independent_noise_from_one_key() -> None:
    mechanism, key = gaussian(1.0, 1.0), jax.random.key(0)
    update, gradient = (np.ravel(_noise(mechanism, key, kind, 1.0, 1)["w"]) for kind in (UPDATE, GRADIENT))
    assert abs(np.corrcoef(update, gradient)[0, 1]) < 5 / math.sqrt(len(update))


def test_no_noise_keeps_every_bit() -> None:
    message = [jnp.array([-0.0, 1.5, jnp.nan], jnp.float32), jnp.array(2.0)]
    for norm in (1.0, math.inf):
        result = gaussian(norm, 0).add_noise(message, jax.random.key(0), UPDATE, norm, 7)
        for one, other in zip(result, message, strict=True):
            assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def test_the_count_and_the_messages_together_are_as_private_as_z() -> None:
    mechanism = gaussian(1.0, 0.8, quantile=0.5, quantile_noise=1.3)
    messages = float(mechanism.message_noise())
    assert messages > 0.8
    assert messages**-2 + (2 * 1.3) ** -2 == pytest.approx(0.8**-2)  # precisions of Gaussian mechanisms add
    assert gaussian(1.0, 0.8).message_noise() == 0.8
    assert float(gaussian(1.0, 0, quantile=0.5).resolve(Sampling("fixed", 10, 100), 5).message_noise()) == 0


def test_the_fraction_is_unbiased_and_has_its_noise() -> None:
    mechanism = gaussian(1.0, 1.0, quantile=0.5, quantile_noise=2.0)
    draw = jax.vmap(lambda key: mechanism.noisy_fraction(12, 40, key, UPDATE, 40))
    fractions = np.asarray(draw(jax.random.split(jax.random.key(1), DRAWS)))
    assert fractions.mean() == pytest.approx(0.3, abs=5 * 0.05 / math.sqrt(DRAWS))
    assert fractions.std() == pytest.approx(2.0 / 40, rel=0.06)


@pytest.mark.parametrize("quantile", [0.2, 0.5, 0.9])
def test_the_norm_finds_the_quantile_of_a_lognormal_population(quantile: float) -> None:
    mechanism = gaussian(0.1, 1.0, quantile=quantile).resolve(Sampling("poisson", 100, 10_000), 300)
    assert mechanism.quantile_noise == 5.0
    random = np.random.default_rng(0)
    norms = random.lognormal(0.5, 0.7, (300, 100))

    @jax.jit
    def run(norm, norms):
        def step(norm, given):
            key, lengths = given
            fraction = mechanism.noisy_fraction((lengths <= norm).sum(), 100, key, UPDATE, 100)
            norm = mechanism.next_norm(norm, fraction)
            return norm, norm

        return jax.lax.scan(step, norm, (jax.random.split(jax.random.key(0), 300), norms))[1]

    path = np.asarray(run(mechanism.norms().update, norms))
    reached = (np.log(path[150:]) - 0.5) / 0.7
    below = np.mean([(1 + math.erf(x / math.sqrt(2))) / 2 for x in reached])
    assert below == pytest.approx(quantile, abs=0.03)


def test_a_target_is_resolved_to_noise_that_meets_it() -> None:
    sampling = Sampling("poisson", 20, 400)
    mechanism = gaussian(1.0, target_epsilon=3.0, delta=1e-4, quantile=0.5).resolve(sampling, 50, releases=2)
    spent = epsilon(Ledger(mechanism.noise_multiplier, sampling).add(2, 50), 1e-4)
    assert 2.99 < spent <= 3.0
    assert mechanism.quantile_noise == max(1.0, mechanism.noise_multiplier)
    assert mechanism.resolve(sampling, 99) == mechanism


def test_norms_become_an_encoder() -> None:
    assert gaussian(2.0, 1.0).clipping() == Clip(2.0, 2.0)
    mechanism = gaussian(2.0, 1.0, gradient_clip=0.5)
    assert mechanism.clipping() == Clip(2.0, 0.5)
    assert mechanism.norms()._replace(update=1.0).of(UPDATE) == 1.0
    assert len(jax.tree.leaves(mechanism)) == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "give either noise_multiplier or target_epsilon, got neither"),
        ({"noise_multiplier": 1, "target_epsilon": 1}, "got both"),
        ({"noise_multiplier": -1}, "noise_multiplier must not be negative, got -1"),
        ({"target_epsilon": 0}, "target_epsilon must be positive, got 0"),
        ({"noise_multiplier": 1, "delta": 0.0}, r"delta must lie in \[1e-9, 1\), got 0.0"),
        ({"noise_multiplier": 1, "clip": 0}, "clip must be positive, or math.inf, got 0"),
        ({"noise_multiplier": 1, "clip": math.inf}, "clip must be finite with noise or quantile, got inf"),
        ({"target_epsilon": 1, "gradient_clip": math.inf}, "gradient_clip must be finite"),
        ({"noise_multiplier": 1, "quantile": 1.0}, r"quantile must lie in \(0, 1\), got 1.0"),
        ({"noise_multiplier": 1, "quantile_noise": 1.0}, "quantile_noise is for adaptive clipping"),
        ({"noise_multiplier": 2, "quantile": 0.5, "quantile_noise": 1.0}, "must exceed noise_multiplier / 2 = 1, got"),
        ({"noise_multiplier": 1, "quantile_rate": 0}, "quantile_rate must be positive"),
    ],
)
def test_refusals(arguments: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        gaussian(**{"clip": 1.0, **arguments})
    assert str(error.value).startswith("gaussian: ")
    assert "\n" not in str(error.value)
