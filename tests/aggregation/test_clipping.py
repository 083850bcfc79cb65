"""Clipping: no message is longer than the bound, and one that is short enough keeps every bit."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmime.aggregation.clipping import Clip, clip, norm_of, within
from fedmime.aggregation.encoder import BROADCAST, GRADIENT, UPDATE, Sender
from fedmime.errors import ConfigError
from fedmime.hyperparameters import at_round

TRACES = []


@jax.jit
def _clipped(recipe: Clip, values: list[jax.Array]) -> list[jax.Array]:
    TRACES.append(1)
    sender = Sender(UPDATE, 0, jax.random.key(0))
    encoded = recipe.encode(values, sender)
    return recipe.decode(encoded, [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in values], sender)


def _message(seed: int, kind: type = np.float32) -> list[jax.Array]:
    random = np.random.default_rng(seed)
    return [jnp.asarray(random.standard_normal(shape).astype(kind)) for shape in ((3, 4), (5,), ())]


def _same_bits(a, b) -> None:
    for one, other in zip(a, b, strict=True):
        assert one.dtype == other.dtype
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


@given(st.integers(0, 1000), st.floats(1e-3, 1e3))
def test_the_norm_is_bounded_the_direction_stays_and_short_messages_keep_every_bit(seed: int, bound: float) -> None:
    message = _message(seed)
    flat = np.concatenate([np.ravel(v).astype(np.float64) for v in message])
    result = _clipped(clip(bound), message)
    after = np.concatenate([np.ravel(v).astype(np.float64) for v in result])
    norm = np.linalg.norm(flat)
    assert np.linalg.norm(after) <= bound * (1 + 1e-6)
    np.testing.assert_allclose(after, flat * min(1, bound / norm), rtol=2e-6, atol=1e-9)
    assert bool(within(message, bound)) == (float(norm_of(message)) <= np.float32(bound))
    if within(message, bound):
        _same_bits(result, message)


def test_a_message_exactly_as_long_as_the_bound_keeps_every_bit() -> None:
    message = [jnp.array([3.0, -0.0], jnp.float32), jnp.array([4.0], jnp.float32)]
    _same_bits(_clipped(clip(5.0), message), message)
    assert bool(within(message, 5.0))
    assert not bool(within(message, 4.999))


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf, 1e30, -0.0])
def test_infinity_clips_nothing(odd: float) -> None:
    message = [jnp.array([odd, 1.0], jnp.float32), *_message(0)]
    _same_bits(_clipped(clip(math.inf), message), message)


def test_another_norm_compiles_nothing() -> None:
    message = _message(1)
    _clipped(clip(1.0), message)
    before = len(TRACES)
    for bound in (0.5, 3.0, math.inf):
        _clipped(clip(bound), message)
    assert len(TRACES) == before


def test_kinds_have_their_own_norms_and_broadcasts_are_left() -> None:
    recipe, message = clip(1.0, gradient=0.1), _message(2, np.float64)
    norms = {}
    for kind in (UPDATE, GRADIENT, BROADCAST):
        norms[kind] = float(norm_of(recipe.encode(message, Sender(kind, 0, jax.random.key(0))).values))
    assert norms[UPDATE] == pytest.approx(1.0)
    assert norms[GRADIENT] == pytest.approx(0.1)
    assert norms[BROADCAST] == float(norm_of(message))
    assert clip(2.0).gradient == 2.0
    assert not Clip.compresses
    assert not Clip.unbiased


def test_low_precision_is_summed_in_single_precision() -> None:
    assert norm_of([jnp.ones(4096, jnp.bfloat16)]) == 64.0
    assert norm_of([]) == 0.0


def test_schedules_and_refusals() -> None:
    assert at_round(clip(lambda t: 1.0 / (t + 1)), 3).norm == 0.25
    for value in (0.0, -1.0, math.nan, "1"):
        with pytest.raises(ConfigError, match=r"^clip: norm must be"):
            clip(value)
    with pytest.raises(ConfigError, match=r"^clip: gradient must be positive, or math.inf, got 0"):
        clip(1.0, 0)
