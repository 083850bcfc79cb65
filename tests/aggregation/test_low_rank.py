"""Low rank: exact for matrices of that rank, nearly the best approximation of others, and only where it saves."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from aggregation.encoding import draws, send, shapes
from fedmime.aggregation.encoder import SERVER, UPDATE, Sender, decode_chain
from fedmime.aggregation.low_rank import low_rank
from fedmime.aggregation.wire import Integers, nbytes, pack, unpack
from fedmime.errors import ConfigError

RANDOM = np.random.default_rng(5)


def product(rows: int, columns: int, rank: int) -> np.ndarray:
    return RANDOM.normal(size=(rows, rank)) @ RANDOM.normal(size=(rank, columns))


def test_matrices_of_that_rank_are_exact() -> None:
    kernel = product(3 * 3 * 4, 8, 2).reshape(3, 3, 4, 8)  # of a convolution: the last axis holds the outputs
    values = [product(20, 12, 2), product(12, 20, 1), kernel, np.zeros((9, 9)), product(20, 12, 2).astype(np.float32)]
    for found, value in zip(draws(low_rank(2), values, 2), values, strict=True):
        assert found.dtype == value.dtype
        np.testing.assert_allclose(found, np.stack([value] * 2), atol=1e-12 if value.dtype == np.float64 else 1e-5)


@pytest.mark.parametrize("rank", [1, 4])
def test_errors_are_near_the_least_possible(rank: int) -> None:
    """The best approximation drops all but the first singular values; the error is bounded by the matrix, too."""
    matrix = (np.linalg.qr(RANDOM.normal(size=(40, 20)))[0] * 2.0 ** -np.arange(20)) @ np.linalg.qr(
        RANDOM.normal(size=(20, 20))
    )[0]
    errors = np.linalg.norm(draws(low_rank(rank), [matrix], 200)[0] - matrix, axis=(1, 2))
    least = np.linalg.norm(2.0 ** -np.arange(rank, 20))
    assert (errors >= least * (1 - 1e-9)).all()
    assert (errors <= np.linalg.norm(matrix)).all()
    assert np.median(errors) < 1.2 * least


def test_the_result_is_a_projection() -> None:
    matrix = RANDOM.normal(size=(30, 25))
    for found in draws(low_rank(3), [matrix], 5)[0]:
        assert np.linalg.matrix_rank(found) == 3
        np.testing.assert_allclose((found * (matrix - found)).sum(), 0, atol=1e-10)


def test_what_is_sent() -> None:
    """Two thin matrices where they are smaller than the array; anything else as it is."""
    values = [
        np.ones((10, 8, 6), np.float32),  # 80 x 6
        np.ones((4, 4), np.float32),  # its factors would have as many numbers
        np.ones(50, np.float32),
        np.float32(1),
        np.arange(100).reshape(10, 10),
        Integers(np.zeros((9, 9), np.uint8), 2),
    ]
    encoded = send(low_rank(2), values, jax.random.key(0))
    assert [v.shape for v in encoded.values[:2]] == [(80, 2), (6, 2)]
    assert len(encoded.values) == len(values) + 1
    assert nbytes(encoded) == 4 * 2 * (80 + 6) + nbytes(values[1:])
    jax.tree.map(np.testing.assert_array_equal, encoded.values[2:], values[1:])


@pytest.mark.parametrize("kind", [np.float64, jnp.bfloat16])
def test_messages_through_bytes_and_loops(kind) -> None:
    encoder, keys = low_rank(2), jax.random.split(jax.random.key(3), 2)
    values = [RANDOM.normal(size=shape).astype(kind) for shape in [(12, 9), (7,), (3, 3, 2, 8)]]
    wire = jax.eval_shape(functools.partial(send, encoder), values, keys[1])
    data = pack(send(encoder, values, keys[1]))
    assert len(data) == nbytes(wire) < nbytes(values)

    def receive(encoded, key):
        return decode_chain([encoder], encoded, shapes(values), Sender(UPDATE, SERVER, key))

    sent = jax.jit(receive)(unpack(data, wire), keys[1])
    body = lambda i, _: receive(send(encoder, values, keys[i]), keys[i])
    looped = jax.jit(lambda: jax.lax.fori_loop(0, 2, body, [jnp.asarray(v) for v in values]))()
    for a, b, value in zip(sent, looped, values, strict=True):
        assert (a.shape, a.dtype) == (value.shape, value.dtype)
        np.testing.assert_allclose(
            np.asarray(a, float), np.asarray(b, float), atol=0.1 if kind == jnp.bfloat16 else 1e-5
        )


def test_not_a_number_is_noticed() -> None:
    matrix = RANDOM.normal(size=(20, 20))
    matrix[3, 4] = np.nan
    assert np.isnan(draws(low_rank(2), [matrix])[0]).any()


def test_what_is_claimed() -> None:
    assert not low_rank(1).unbiased


@pytest.mark.parametrize("rank", [0, -1, 1.0, True, "2", None])
def test_other_ranks_are_refused(rank) -> None:
    with pytest.raises(ConfigError) as refusal:
        low_rank(rank)
    assert str(refusal.value) == f"low_rank: rank must be a whole number of at least 1, got {rank!r}"
