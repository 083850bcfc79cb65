"""Quantization: unbiased, with a bounded error, exact where it can be, and by random bits that are good enough."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedmime.aggregation.encoder import SERVER, UPDATE, Sender, decode_chain, encode_chain
from fedmime.aggregation.low_rank import low_rank
from fedmime.aggregation.quantization import Quantize, _hadamard, _rotate, _rotate_back, quantize, random_bits
from fedmime.aggregation.sparsification import random_k, top_k
from fedmime.aggregation.wire import Integers, nbytes, pack, unpack
from fedmime.errors import ConfigError

DRAWS = 10_000
RANDOM = np.random.default_rng(3)
# A matrix with many zeros, as updates have, one whose weights are all positive, and a vector with one outlier.
MESSAGE = [
    np.where(RANDOM.random((6, 5)) < 0.5, 0, RANDOM.normal(size=(6, 5))),
    RANDOM.random((3, 4)) + 0.5,
    np.concatenate([RANDOM.normal(size=20), [9.0]]),
]


def sender(seed=0, key=None) -> Sender:
    return Sender(UPDATE, SERVER, jax.random.key(seed) if key is None else key)


def arrays(kind=np.float32) -> list[np.ndarray]:
    return [a.astype(kind) for a in MESSAGE]


def shapes(values) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in values]


@functools.partial(jax.jit, static_argnums=0)
def send(encoders, values, key):
    return encode_chain(encoders, values, sender(key=key))


def there_and_back(encoders, values, key) -> list[jax.Array]:
    return decode_chain(encoders, send(encoders, values, key), shapes(values), sender(key=key))


@functools.partial(jax.jit, static_argnums=(0, 2))
def _draws(encoders, values, count):
    keys = jax.random.split(jax.random.key(11), count)
    return jax.vmap(lambda key: there_and_back(encoders, values, key))(keys)


def draws(encoders, values, count=DRAWS) -> list[np.ndarray]:
    """The decoded messages of many keys, as NumPy arrays: JAX would compile every line of a test."""
    return [np.asarray(found) for found in _draws(encoders, values, count)]


@pytest.mark.parametrize(
    "encoders",
    [
        (quantize(1),),
        (quantize(2),),
        (quantize(8),),
        (quantize(1, rotate=True),),
        (quantize(3, rotate=True),),
        (
            random_k(0.4),
            quantize(2),
        ),
    ],
    ids=["1", "2", "8", "1-rotated", "3-rotated", "random_k-2"],
)
def test_the_expectation_is_the_message(encoders, fact) -> None:
    values = arrays(np.float64)
    squares, count = 0.0, 0
    for found, value in zip(draws(encoders, values), values, strict=True):
        mean, deviation = np.mean(found, 0), np.std(found, 0) / np.sqrt(DRAWS)
        fixed = deviation < 1e-12
        np.testing.assert_allclose(mean[fixed], value[fixed], rtol=0, atol=1e-10)
        z = ((mean - value) / np.where(fixed, 1, deviation))[~fixed]
        assert np.abs(z).max(initial=0) < 4.5
        squares, count = squares + (z**2).sum(), count + z.size
        fact("standard errors between the mean of 10,000 encoded messages and the message", np.abs(z).max(initial=0))
    assert squares < count + 5 * np.sqrt(2 * count)  # chi-squared, nearly


@pytest.mark.parametrize("bits", [1, 2, 16])
def test_the_error_is_below_one_step(bits: int) -> None:
    values = arrays() + arrays(np.float64)
    for found, value in zip(draws((quantize(bits),), values, 50), values, strict=True):
        low, high = float(value.min()), float(value.max())
        if bits > 1:
            low, high = min(low, 0), max(high, 0)
        step = (high - low) / (2**bits - (2 if bits > 1 else 1))
        assert found.dtype == value.dtype
        assert np.abs(found - value).max() <= step * (1 + 1e-3)
        assert low <= found.min() or bits > 1  # with one bit, what is positive stays so
        assert len(np.unique(found)) <= 2**bits


def test_rotation_reduces_the_error_of_outliers() -> None:
    """Two large weights among many small ones: the case that rotations are for."""
    value = np.random.default_rng(0).normal(size=5000) * 0.01
    value[77], value[4990] = 1, -1
    plain, rotated = (
        float(((draws((quantize(1, rotate),), [value], 20)[0] - value) ** 2).sum(1).mean()) for rotate in (False, True)
    )
    assert rotated < plain / 50


def test_zero_is_a_level() -> None:
    """Weights that are zero stay zero, and signs are kept, with two bits or more."""
    for bits in (2, 8):
        for found, value in zip(draws((quantize(bits),), arrays(), 50), arrays(), strict=True):
            assert not found[:, value == 0].any()
            assert (found * value >= 0).all()


@pytest.mark.parametrize("bits", [1, 7, 16])
def test_constant_arrays_are_exact(bits: int) -> None:
    for constant in (0.0, 0.1, -0.3, 1e-30, -7e30):
        values = [np.full((4, 9), constant, kind) for kind in (np.float32, np.float64, jnp.bfloat16)]
        for found, value in zip(draws((quantize(bits),), values, 3), values, strict=True):
            assert found.dtype == value.dtype
            np.testing.assert_array_equal(found, np.stack([value] * 3))


@pytest.mark.parametrize(("bits", "rotate"), [(1, True), (8, False)])
def test_zeros_and_tiny_and_not_finite_arrays(bits: int, rotate: bool) -> None:
    encoders = (quantize(bits, rotate),)
    values = [np.zeros(70, np.float32), np.linspace(-2e-38, 4e-38, 70, dtype=np.float32)]
    values += [np.where(np.arange(70) == 3, value, 1.0) for value in (np.nan, np.inf, -np.inf)]
    zeros, tiny, *wrong = draws(encoders, values, 3)
    assert not zeros.any()
    assert np.abs(tiny).max() < 1e-36
    for found in wrong:
        assert not np.isfinite(found).all(1).any()  # so that a check of the decoded message notices


@pytest.mark.parametrize("rotate", [False, True])
def test_32_bits_change_nothing(rotate: bool) -> None:
    encoder = quantize(32, rotate)
    assert isinstance(encoder, Quantize)
    values = [*arrays(), *arrays(np.float64), jnp.asarray([np.nan, -0.0, np.inf])]
    encoded = encode_chain([encoder], values, sender())
    assert nbytes(encoded) == nbytes(values)
    for found, value in zip(decode_chain([encoder], encoded, shapes(values), sender()), values, strict=True):
        assert (found.dtype, np.asarray(found).tobytes()) == (value.dtype, np.asarray(value).tobytes())


CHAINS = {
    "16-rotated": ((quantize(16, rotate=True),), 0.7),
    "random_k-8": ((random_k(0.2), quantize(8)), 0.2),
    "top_k-4": ((top_k(0.2), quantize(4)), 0.25),
    "low_rank-8": ((low_rank(1), quantize(8)), 0.45),
    "twice": ((quantize(4), quantize(2)), 0.4),  # integers are not encoded again
}


@pytest.mark.parametrize("name", CHAINS)
def test_chains_through_bytes_loops_and_maps(name: str) -> None:
    """A message that was packed and unpacked is decoded as in a compiled loop over many clients at once."""
    encoders, size = CHAINS[name]
    values = [arrays()[0], arrays(np.float64)[2]]
    keys = jax.random.split(jax.random.key(5), 4).reshape(2, 2)

    encoded = send(encoders, values, keys[1, 1])
    wire = jax.eval_shape(functools.partial(send, encoders), values, keys[1, 1])
    assert nbytes(wire) == len(pack(encoded)) < size * nbytes(values)
    receive = jax.jit(lambda encoded: decode_chain(encoders, encoded, shapes(values), sender(key=keys[1, 1])))
    sent = receive(unpack(pack(encoded), wire))

    clients = jax.vmap(lambda key: there_and_back(encoders, values, key))
    start = [jnp.zeros((2, *value.shape), value.dtype) for value in values]
    looped = jax.jit(lambda: jax.lax.fori_loop(0, 2, lambda i, _: clients(keys[i]), start))()
    for value, found, other in zip(values, sent, looped, strict=True):
        assert (found.shape, found.dtype) == (value.shape, value.dtype)
        np.testing.assert_allclose(found, other[1], rtol=1e-5, atol=1e-5)


def test_what_is_not_quantized() -> None:
    """Integers, empty arrays and arrays of so few weights that nothing would be saved are sent as they are."""
    values = [jnp.arange(9), jnp.zeros((0, 3)), jnp.float32(2.5), jnp.asarray([1.5, 2.5], jnp.float32)]
    values += [Integers(jnp.arange(5, dtype=jnp.uint8), 3)]
    encoded = encode_chain((quantize(8),), values, sender())
    assert nbytes(encoded) == nbytes(values)
    found = decode_chain([quantize(8)], encoded, values, sender())
    jax.tree.map(np.testing.assert_array_equal, found, values)


def test_half_precision() -> None:
    value = np.linspace(-1, 1, 64).astype(jnp.bfloat16)
    (found,) = draws((quantize(8),), [value], 3)
    assert found.dtype == jnp.bfloat16
    assert np.abs(found.astype(np.float32) - value.astype(np.float32)).max() < 0.02


def test_the_sender_alone_decides() -> None:
    """The same key gives the same message; other keys, and other arrays of a message, round independently."""
    value = np.full(4000, 0.5, np.float32)
    value[:2] = 0, 1
    first, again, other = (send((quantize(1),), [value, value], jax.random.key(seed)).values for seed in (0, 0, 1))
    np.testing.assert_array_equal(first[0].numbers, again[0].numbers)
    for a, b in [(first[0], first[1]), (first[0], other[0]), (first[1], other[1])]:
        assert abs(np.mean(np.asarray(a.numbers) == np.asarray(b.numbers)) - 0.5) < 4 * 0.5 / np.sqrt(4000)


def test_random_bits_are_uniform_and_independent(fact) -> None:
    """Over indices and over senders alike: every bit, every byte, and pairs of neighbours."""
    words = jax.vmap(lambda key: jax.random.bits(key, (2,), jnp.uint32))(jax.random.split(jax.random.key(2), 300))
    bits = np.asarray(jax.jit(jax.vmap(lambda w: random_bits(w, 1000, 2000)))(words))
    worst = 0.0
    for axis in (0, 1):  # for each index over senders; for each sender over indices
        count = bits.shape[axis]
        for bit in range(32):
            z = ((bits >> bit & 1).mean(axis) - 0.5) * 2 * np.sqrt(count)
            worst = max(worst, np.abs(z).max())
            assert abs((z**2).mean() - 1) < 6 * np.sqrt(2 / z.size)
        neighbours = np.diff(bits.astype(np.int64), axis=1 - axis) % 2**32  # uniform, too, if they are independent
        for numbers in (bits, neighbours):
            for shift in (0, 8, 16, 24):
                counts = np.bincount((numbers >> shift & 255).ravel(), minlength=256)
                chi = ((counts - counts.mean()) ** 2 / counts.mean()).sum()
                assert abs(chi - 255) < 5 * np.sqrt(2 * 255)
    assert worst < 5.5  # of 73,600 standard normal numbers
    fact("standard errors between a random bit's mean and a half", worst)


@pytest.mark.parametrize("distance", [1, 2, 3, 16, 256, 784])
def test_random_bits_at_fixed_distances_are_uncorrelated(distance: int) -> None:
    """Weights of one row, or of one column of a matrix, must not be rounded alike."""
    bits = np.asarray(random_bits(jnp.asarray([0, 0], jnp.uint32), 0, 200_000)) / 2**32 - 0.5
    correlation = 12 * np.mean(bits[distance:] * bits[:-distance])
    assert abs(correlation) < 4 / np.sqrt(len(bits))


@jax.jit
def _turn(v, bits):
    turned = _rotate(v, bits)
    return turned, _rotate_back(turned, bits)


@pytest.mark.parametrize("size", [1, 3, 16, 31, 300, 9001])
def test_rotations_are_orthogonal(size: int) -> None:
    v, bits = np.random.default_rng(size).normal(size=size), random_bits(np.asarray([7, 8], np.uint32), 0, size)
    turned, back = _turn(v, bits)
    np.testing.assert_allclose(np.linalg.norm(turned), np.linalg.norm(v), rtol=1e-12)
    np.testing.assert_allclose(back, v, atol=1e-12)
    spread, _ = _turn((np.arange(size) == size - 1) * 1.0, bits)
    assert np.abs(spread).max() <= 2 / np.sqrt(min(4096, size / 2))  # the last weight is spread like the others


def test_the_transform_is_that_of_the_definition() -> None:
    matrix = np.ones((1, 1))
    while len(matrix) < 32:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    v = np.random.default_rng(0).normal(size=(3, 32))
    np.testing.assert_allclose(_hadamard(jnp.asarray(v.ravel()), 32), (v @ matrix / np.sqrt(32)).ravel(), atol=1e-12)


@pytest.mark.parametrize("bits", [0, 17, 31, 33, 8.0, True, "8", None])
def test_other_bits_are_refused(bits) -> None:
    with pytest.raises(ConfigError) as refusal:
        quantize(bits)
    assert str(refusal.value) == f"quantize: bits must be a whole number from 1 to 16, or 32, got {bits!r}"


def test_other_rotations_are_refused() -> None:
    with pytest.raises(ConfigError, match="quantize: rotate must be True or False, got 'no'"):
        quantize(8, rotate="no")
