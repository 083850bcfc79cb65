"""Messages that are encoded and decoded with many random keys, for the tests of encoders."""

import functools

import jax
import numpy as np

from fedmime.aggregation.encoder import SERVER, UPDATE, Sender, decode_chain, encode_chain


def shapes(values):
    return [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in values]


@functools.partial(jax.jit, static_argnums=0)
def send(encoder, values, key):
    return encode_chain([encoder], values, Sender(UPDATE, SERVER, key))


@functools.partial(jax.jit, static_argnums=(0, 2))
def _draws(encoder, values, count):
    def one(key):
        return decode_chain([encoder], send(encoder, values, key), shapes(values), Sender(UPDATE, SERVER, key))

    return jax.vmap(one)(jax.random.split(jax.random.key(1), count))


def draws(encoder, values, count=1) -> list[np.ndarray]:
    """The decoded messages of many keys."""
    return [np.asarray(found) for found in _draws(encoder, values, count)]
