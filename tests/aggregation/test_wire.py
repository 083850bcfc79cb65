"""Packed messages: every bit comes back, and their length is known from shapes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmime.aggregation.wire import Integers, encodable, nbytes, pack, storage, unpack

TYPES = [np.float32, np.float64, np.float16, jnp.bfloat16, np.int32, np.uint8, np.bool_]
SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)


@st.composite
def leaves(draw):
    """An array of any type, or integers of any number of bits; every bit pattern may occur."""
    shape, random = draw(SHAPES), np.random.default_rng(draw(st.integers(0, 2**32)))
    if draw(st.booleans()):
        bits = draw(st.integers(1, 32))
        return Integers(random.integers(0, 1 << bits, shape, np.uint64).astype(storage(bits)), bits)
    kind = np.dtype(draw(st.sampled_from(TYPES)))
    if kind == np.bool_:
        return random.integers(0, 2, shape).astype(bool)
    return np.frombuffer(random.bytes(int(np.prod(shape)) * kind.itemsize), kind).reshape(shape)


def _shapes(wire):
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), wire)


@given(st.lists(leaves(), max_size=4))
def test_unpacking_undoes_packing(arrays) -> None:
    wire = {"values": arrays, "side": (None, arrays[:1])}
    data = pack(wire)
    assert len(data) == nbytes(wire) == nbytes(_shapes(wire))
    for like in (wire, _shapes(wire)):
        found = unpack(data, like)
        assert jax.tree.structure(found) == jax.tree.structure(wire)
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wire), strict=True):
            assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


def test_the_bytes_are_as_documented() -> None:
    three = Integers(jnp.asarray([1, 2, 7], jnp.uint8), 3)  # 111 010 001, the first number in the lowest bits
    twelve = Integers(jnp.asarray([0xABC, 0x123], jnp.uint16), 12)
    wire = [jnp.float32(1), three, twelve, jnp.asarray([258], jnp.int32)]
    assert pack(wire) == bytes.fromhex("0000803fd101bc3a1202010000")


def test_bytes_are_counted_from_shapes() -> None:
    found = jax.eval_shape(
        lambda v: [Integers(v.astype(jnp.uint8), 3), v], jax.ShapeDtypeStruct((1 << 20, 9), jnp.float32)
    )
    assert nbytes(found) == (1 << 20) * 9 * 3 // 8 + (1 << 20) * 9 * 4
    assert nbytes([Integers(jnp.zeros(3, jnp.uint8), 3)]) == 2
    assert nbytes([]) == nbytes(None) == 0
    assert pack([]) == b""


@pytest.mark.parametrize("length", [0, 1, 5, 7, 12])
def test_data_of_another_length_are_refused(length: int) -> None:
    like = [jnp.zeros(1, jnp.float32), Integers(jnp.zeros(5, jnp.uint8), 3)]
    with pytest.raises(ValueError, match=f"unpack: data must have the 6 bytes of such a message, got {length}"):
        unpack(bytes(length), like)


@pytest.mark.parametrize("bits", [0, 33, -1])
def test_other_numbers_of_bits_are_refused(bits: int) -> None:
    with pytest.raises(ValueError, match=rf"Integers: bits must lie in 1..32, got {bits}"):
        Integers(jnp.zeros(1, jnp.uint8), bits)


def test_numbers_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="pack: numbers of 3 bits must be below 8, got 8"):
        pack(Integers(np.asarray([1, 8], np.uint8), 3))


def test_integers_are_a_pytree() -> None:
    double = jax.jit(jax.vmap(lambda w: jax.tree.map(lambda n: n * 2, w)))
    found = double(Integers(jnp.arange(6, dtype=jnp.uint8).reshape(2, 3), 5))
    assert found.bits == 5
    np.testing.assert_array_equal(found.numbers, [[0, 2, 4], [6, 8, 10]])


def test_only_floating_point_arrays_are_encodable() -> None:
    assert encodable(jnp.zeros(2, jnp.bfloat16))
    assert encodable(jax.ShapeDtypeStruct((), jnp.float64))
    assert not encodable(jnp.zeros(2, jnp.int32))
    assert not encodable(Integers(jnp.zeros(2, jnp.uint8), 8))
