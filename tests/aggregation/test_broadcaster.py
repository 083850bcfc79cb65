"""Broadcasts: what clients decode is what a simulation gives them, and every array is encoded once."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedmime as fm
from fedmime.aggregation import wire
from fedmime.aggregation.aggregator import EXACT, Broadcaster, receive_broadcast, wire_like

g = fm.aggregation
KEY = jax.random.key(5)
X, M = {"w": jnp.linspace(-1.0, 1.0, 30).reshape(6, 5), "n": jnp.arange(4)}, jnp.linspace(0.0, 1.0, 9)


@pytest.mark.parametrize("down", [None, g.quantize(8), g.quantize(3, rotate=True)], ids=["plain", "8 bits", "rotated"])
def test_clients_decode_what_a_simulation_gives_them(down: Any) -> None:
    aggregator = g.chain(down=down)
    sending = Broadcaster(aggregator, KEY)
    received = sending.received((X, M, M))
    for array in jax.tree.leaves(received):
        like, stream = jax.ShapeDtypeStruct(array.shape, array.dtype), sending.stream(array)
        form = wire_like(aggregator, like, stream)
        data = wire.pack(jax.device_get(sending.wire(array)))
        assert len(data) == wire.nbytes(form)
        decoded = receive_broadcast(aggregator, wire.unpack(data, form), like, KEY, stream)
        np.testing.assert_array_equal(decoded, array)
    assert received[1] is received[2]
    assert (down is None) == (received[1] is M)


def test_what_must_be_exact_goes_as_it_is() -> None:
    sending = Broadcaster(g.chain(down=g.quantize(2)), KEY)
    coarse, exact = sending.received((X, M), exact=M)
    assert exact is M
    assert sending.stream(M) == EXACT
    assert sending.wire(M) is M
    assert sending.stream(coarse["w"]) != EXACT
    assert not np.array_equal(coarse["w"], X["w"])
    again, _ = sending.received((X, M))
    assert again["w"] is coarse["w"]
