"""Encoders in a chain: each encodes what the one before it left, and decoding goes the other way."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedmime.aggregation.encoder import UPDATE, Encoded, Encoder, Sender, decode_chain, encode_chain, own

SENDER = Sender(UPDATE, 2, jax.random.key(7))
VALUES = [jnp.arange(6.0).reshape(2, 3), jnp.ones(1)]
LIKE = [jax.ShapeDtypeStruct(value.shape, value.dtype) for value in VALUES]


class Joined(Encoder):
    """All arrays as one."""

    def encode(self, values, sender):
        return Encoded([jnp.concatenate([value.ravel() for value in values])])

    def decode(self, encoded, like, sender):
        sizes = np.cumsum([np.prod(each.shape, dtype=int) for each in like])[:-1]
        parts = jnp.split(encoded.values[0], sizes)
        return [part.reshape(each.shape) for part, each in zip(parts, like, strict=True)]


class Shifted(Encoder):
    """Random numbers that both sides draw are added, and how many values there are goes along."""

    def _shifts(self, shapes, sender):
        return [jax.random.normal(sender.key, each.shape, each.dtype) for each in shapes]

    def encode(self, values, sender):
        shifts = self._shifts(values, sender)
        return Encoded([v + s for v, s in zip(values, shifts, strict=True)], jnp.asarray(len(values)))

    def decode(self, encoded, like, sender):
        shifts = self._shifts(like, sender)
        return [v - s for v, s in zip(encoded.values, shifts, strict=True)]


@pytest.mark.parametrize(
    ("chain", "arrays", "sides"),
    [([Joined(), Shifted()], 1, [(), 1]), ([Shifted(), Joined()], 1, [2, ()]), ([Shifted(), Shifted()], 2, [2, 2])],
)
def test_a_chain_is_undone_in_reverse_order(chain, arrays, sides) -> None:
    """Each encoder decodes with the shapes that it was given, which are others inside a chain."""
    encoded = encode_chain(chain, VALUES, SENDER)
    assert len(encoded.values) == arrays
    assert [int(side) if isinstance(side, jax.Array) else side for side in encoded.side] == sides
    for found, value in zip(decode_chain(chain, encoded, LIKE, SENDER), VALUES, strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-12, atol=1e-12)


def test_the_same_encoder_draws_other_numbers_at_another_place() -> None:
    first, second = (jax.random.normal(own(SENDER, number).key) for number in range(2))
    assert first != second
    once, twice = (encode_chain([Shifted()] * number, VALUES, SENDER).values[0] - VALUES[0] for number in (1, 2))
    assert np.abs(twice - 2 * once).min() > 1e-3


def test_who_sends_stays() -> None:
    assert own(SENDER, 1)[:2] == (UPDATE, 2)


def test_no_encoder_is_no_change() -> None:
    encoded = encode_chain([], VALUES, SENDER)
    assert encoded == Encoded(VALUES, ())
    assert decode_chain([], encoded, LIKE, SENDER) is VALUES
