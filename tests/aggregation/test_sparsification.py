"""Sparsification: random weights without bias and without positions, or the largest weights with them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from aggregation.encoding import draws, send
from fedmime.aggregation.encoder import SERVER, UPDATE, Sender, decode_chain
from fedmime.aggregation.sparsification import random_k, top_k
from fedmime.aggregation.wire import Integers, nbytes, pack, unpack
from fedmime.errors import ConfigError

DRAWS = 10_000
RANDOM = np.random.default_rng(4)
MESSAGE = [RANDOM.normal(size=(7, 9)), RANDOM.normal(size=11).astype(np.float32), np.asarray(2.5)]


@pytest.mark.parametrize("fraction", [0.01, 0.3, 0.7])
def test_random_weights_have_the_message_as_expectation(fraction: float, fact) -> None:
    for found, value in zip(draws(random_k(fraction), MESSAGE, DRAWS), MESSAGE, strict=True):
        count = min(value.size, max(1, round(fraction * value.size)))
        groups = np.array_split(np.arange(value.size), count)  # the larger groups come first here, too
        sizes = np.concatenate([np.full(len(g), len(g)) for g in groups]).reshape(value.shape)
        assert ((found == 0) | (found == (sizes * value).astype(value.dtype))).all()
        sent = np.concatenate([(found.reshape(DRAWS, -1)[:, g] != 0).sum(1, keepdims=True) for g in groups], 1)
        assert (sent == 1).all()  # one of each group
        often = (found != 0).mean(0)  # binomial, with a chance of 1 / size
        z = (often - 1 / sizes) / np.sqrt(np.maximum(1 / sizes * (1 - 1 / sizes), 1e-9) / DRAWS)
        assert np.abs(z).max() < 4.5
        assert (z**2).sum() < z.size + 5 * np.sqrt(2 * z.size)
        fact("standard errors between the mean of 10,000 encoded messages and the message", np.abs(z).max())
        error = ((found.astype(float) - value) ** 2).reshape(DRAWS, -1).sum(1)
        expected = ((sizes - 1) * value.astype(float) ** 2).sum()
        assert abs(error.mean() - expected) <= 5 * error.std() / np.sqrt(DRAWS) + 1e-6 * expected


def test_positions_of_random_weights_are_not_sent() -> None:
    encoded = send(random_k(0.25), [np.arange(1.0, 401.0, dtype=np.float32)], jax.random.key(0))
    assert nbytes(encoded) == 100 * 4
    groups = (np.asarray(encoded.values[0]) - 1) // 4
    np.testing.assert_array_equal(groups, np.arange(100))


def test_arrays_of_a_message_are_cut_independently() -> None:
    value = np.arange(1.0, 8001.0)
    first, second = send(random_k(0.25), [value, value], jax.random.key(0)).values
    same = np.mean(np.asarray(first) == np.asarray(second))
    assert abs(same - 1 / 4) < 5 * np.sqrt(3 / 16 / 2000)


@pytest.mark.parametrize("fraction", [0.05, 0.3])
def test_the_largest_weights_are_sent(fraction: float) -> None:
    for found, value in zip(draws(top_k(fraction), MESSAGE[:2], 2), MESSAGE[:2], strict=True):
        count = max(1, round(fraction * value.size))
        kept = np.argsort(-np.abs(value), axis=None)[:count]
        expected = np.zeros_like(value)
        expected.flat[kept] = value.flat[kept]
        assert found.dtype == value.dtype
        np.testing.assert_array_equal(found, np.stack([expected] * 2))


def test_positions_take_few_bits() -> None:
    value = np.random.default_rng(0).normal(size=(10, 100)).astype(np.float32)
    encoded = send(top_k(0.05), [value], jax.random.key(0))
    assert nbytes(encoded) == 50 * 4 + 50 * 10 // 8 + 1
    (places,) = encoded.side[0]
    assert (places.bits, places.numbers.dtype) == (10, jnp.uint16)


def test_where_positions_cost_too_much_all_weights_are_sent() -> None:
    values = [np.random.default_rng(0).normal(size=1000).astype(np.float32)]
    encoded = send(top_k(0.9), values, jax.random.key(0))
    assert nbytes(encoded) == 4000
    np.testing.assert_array_equal(draws(top_k(0.9), values, 1)[0][0], values[0])


def test_foreign_positions_are_ignored() -> None:
    """A faulty client cannot make the server write outside the array."""
    encoded = send(top_k(0.1), [np.arange(100.0)], jax.random.key(0))
    wrong = encoded._replace(side=([Integers(np.full(10, 127, np.uint8), 7)],))
    (found,) = decode_chain(
        [top_k(0.1)], wrong, [jax.ShapeDtypeStruct((100,), jnp.float64)], Sender(UPDATE, 0, jax.random.key(0))
    )
    assert not found.any()


def test_a_weight_that_is_not_a_number_is_among_the_largest() -> None:
    (found,) = draws(top_k(0.1), [np.where(np.arange(100) == 3, np.nan, 1.0)], 1)
    assert np.isnan(found).sum() == 1


@pytest.mark.parametrize("factory", [random_k, top_k])
def test_all_weights_change_nothing(factory) -> None:
    values = [*MESSAGE, np.asarray([np.nan, -0.0, np.inf]), np.zeros((0, 3))]
    for found, value in zip(draws(factory(1.0), values, 1), values, strict=True):
        assert (found.dtype, found[0].tobytes()) == (value.dtype, value.tobytes())
    assert nbytes(send(factory(1), values, jax.random.key(0))) == nbytes(values)


@pytest.mark.parametrize("factory", [random_k, top_k])
def test_messages_through_bytes_and_loops(factory) -> None:
    encoder, keys = factory(0.2), jax.random.split(jax.random.key(3), 2)
    values = [*MESSAGE, np.arange(30), Integers(np.arange(30, dtype=np.uint8), 5)]
    wire = jax.eval_shape(functools.partial(send, encoder), values, keys[1])
    data = pack(send(encoder, values, keys[1]))
    assert len(data) == nbytes(wire)

    def receive(encoded, key):
        return decode_chain([encoder], encoded, values, Sender(UPDATE, SERVER, key))

    sent = jax.jit(receive)(unpack(data, wire), keys[1])
    body = lambda i, _: receive(send(encoder, values, keys[i]), keys[i])
    looped = jax.jit(lambda: jax.lax.fori_loop(0, 2, body, jax.tree.map(jnp.asarray, values)))()
    jax.tree.map(np.testing.assert_array_equal, sent, looped)
    jax.tree.map(np.testing.assert_array_equal, sent[-2:], values[-2:])


def test_what_is_claimed() -> None:
    assert random_k(0.5).unbiased
    assert not top_k(0.5).unbiased


@pytest.mark.parametrize("factory", [random_k, top_k])
@pytest.mark.parametrize("fraction", [0, -0.1, 1.01])
def test_other_fractions_are_refused(factory, fraction) -> None:
    with pytest.raises(ConfigError) as refusal:
        factory(fraction)
    assert str(refusal.value) == f"{factory.__name__}: fraction must lie in (0, 1], got {fraction!r}"


@pytest.mark.parametrize("factory", [random_k, top_k])
@pytest.mark.parametrize("fraction", ["0.1", True, None, np.nan])
def test_what_is_no_fraction_is_refused(factory, fraction) -> None:
    with pytest.raises(ConfigError, match=rf"^{factory.__name__}: fraction must "):
        factory(fraction)
