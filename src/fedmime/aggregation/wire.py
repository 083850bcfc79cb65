"""The form in which encoded messages are sent: integers of few bits, byte counts, and conversion to and from bytes.

On a device, an integer of 3 bits takes a whole byte, because arrays have no smaller elements. Only `pack` puts the bits
side by side; `nbytes` counts what `pack` returns from shapes alone, so that a simulation reports the bytes of a
deployment without packing anything.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Integers:
    """An array of unsigned integers, each of which takes `bits` bits when it is sent."""

    numbers: Any
    """An array of type `storage(bits)`, or its shape; every number is below 2^bits."""
    bits: int = dataclasses.field(metadata={"static": True})
    """From 1 to 32; fixed when a program is traced."""

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= 32:
            raise ValueError(f"Integers: bits must lie in 1..32, got {self.bits!r}")

    @property
    def nbytes(self) -> int:
        """Bytes of the packed numbers; the last byte may be partly empty."""
        return -(-self.numbers.size * self.bits // 8)


def storage(bits: int) -> Any:
    """The smallest unsigned integer type of arrays that holds numbers of so many bits."""
    return jnp.uint8 if bits <= 8 else jnp.uint16 if bits <= 16 else jnp.uint32


def encodable(value: Any) -> TypeGuard[jax.Array]:
    """Whether an encoder may change a value: floating-point arrays, or their shapes, but not `Integers`."""
    return not isinstance(value, Integers) and jnp.issubdtype(value.dtype, jnp.floating)


def nbytes(wire: Any) -> int:
    """Bytes that a message takes when it is sent, which is `len(pack(wire))`.

    Args:
        wire: a pytree of arrays and `Integers`, or of their shapes as `jax.eval_shape` returns them.
    """
    return sum(_nbytes(leaf) for leaf in _leaves(wire))


def pack(wire: Any) -> bytes:
    """The bytes of a message: its arrays in the order of the pytree, little-endian, without any header.

    `Integers` are packed bit by bit, the lowest bit of the first number first, and end at a whole byte.
    """
    return b"".join(
        _pack_bits(np.asarray(leaf.numbers).ravel(), leaf.bits)
        if isinstance(leaf, Integers)
        else _words(np.asarray(leaf).ravel()).tobytes()
        for leaf in _leaves(wire)
    )


def unpack(data: bytes, like: Any) -> Any:
    """The message that was packed, with NumPy arrays as leaves.

    Nothing in the bytes describes the message, so a sender cannot choose shapes or types.

    Args:
        data: what `pack` returned.
        like: the message's structure, types and shapes: another such message, or shapes as from `jax.eval_shape`.

    Raises:
        ValueError: if the length of `data` is not `nbytes(like)`.
    """
    if len(data) != nbytes(like):
        raise ValueError(f"unpack: data must have the {nbytes(like)} bytes of such a message, got {len(data)}")
    leaves, end = [], 0
    for leaf in _leaves(like):
        start, end = end, end + _nbytes(leaf)
        part = np.frombuffer(data[start:end], np.uint8)
        if isinstance(leaf, Integers):
            numbers = _unpack_bits(part, leaf.bits, leaf.numbers.size)
            leaves.append(Integers(numbers.reshape(leaf.numbers.shape).astype(leaf.numbers.dtype), leaf.bits))
        else:
            leaves.append(_from_words(part, np.dtype(leaf.dtype)).reshape(leaf.shape))
    return jax.tree.unflatten(jax.tree.structure(like, is_leaf=_is_integers), leaves)


def _is_integers(value: Any) -> bool:
    return isinstance(value, Integers)


def _leaves(wire: Any) -> list[Any]:
    """The arrays and `Integers` of a message."""
    return jax.tree.leaves(wire, is_leaf=_is_integers)


def _nbytes(leaf: Any) -> int:
    """Bytes of one array or `Integers`."""
    return leaf.nbytes if isinstance(leaf, Integers) else leaf.size * leaf.dtype.itemsize


def _words(array: np.ndarray) -> np.ndarray:
    """The elements of an array as little-endian words.

    Integer words are used because NumPy cannot swap the bytes of types that it does not define, such as bfloat16.
    """
    size = array.dtype.itemsize
    return array.view(f"u{size}").astype(f"<u{size}")


def _from_words(data: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Undo `_words`: an array of the given type from its bytes."""
    return data.view(f"<u{dtype.itemsize}").astype(f"u{dtype.itemsize}").view(dtype)


def _pack_bits(numbers: np.ndarray, bits: int) -> bytes:
    """The lowest `bits` bits of each number, side by side."""
    if numbers.size and int(numbers.max()) >> bits:
        raise ValueError(f"pack: numbers of {bits} bits must be below {1 << bits}, got {numbers.max()}")
    words = _words(numbers)
    if words.itemsize * 8 == bits:
        return words.tobytes()
    each = np.unpackbits(
        words.view(np.uint8).reshape(numbers.size, words.itemsize), axis=1, count=bits, bitorder="little"
    )
    return np.packbits(each, bitorder="little").tobytes()


def _unpack_bits(data: np.ndarray, bits: int, count: int) -> np.ndarray:
    """Undo `_pack_bits`: so many numbers, of any unsigned type that holds them."""
    if bits in (8, 16, 32):
        return _from_words(data, np.dtype(f"u{bits // 8}"))
    each = np.unpackbits(data, count=count * bits, bitorder="little").reshape(count, bits)
    padded = np.zeros((count, 4), np.uint8)
    packed = np.packbits(each, axis=1, bitorder="little")
    padded[:, : packed.shape[1]] = packed
    return _from_words(padded.ravel(), np.dtype(np.uint32))
