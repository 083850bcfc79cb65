"""Arrays on several devices: copied, spread, and added in a fixed order."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import fedmime as fm
from fedmime.engine.backends.local.devices import add_parts, mesh, replicate, shard


def test_a_mesh_has_the_first_devices() -> None:
    assert mesh(2).devices.tolist() == jax.local_devices()[:2]
    assert mesh(2) is mesh(2)
    assert mesh().devices.tolist() == jax.local_devices()


@pytest.mark.parametrize("wrong", [0, -1, 1.0, "2", True, 1 + len(jax.local_devices())])
def test_other_numbers_of_devices_are_refused(wrong: Any) -> None:
    with pytest.raises(fm.ConfigError, match=r"^devices must be a whole number between 1 and \d+ .*, got ") as refusal:
        mesh(wrong)
    assert repr(wrong) in str(refusal.value)


def test_copies_and_shards_are_where_they_should_be() -> None:
    three, rows = mesh(3), np.arange(6.0).reshape(3, 2)
    copied, spread = replicate({"x": rows}, three)["x"], shard({"x": rows}, three)["x"]
    assert copied.devices() == spread.devices() == set(three.devices.flat)
    assert [part.data.shape for part in copied.addressable_shards] == [(3, 2)] * 3
    for part, device, row in zip(spread.addressable_shards, three.devices.flat, rows, strict=True):
        assert part.device == device
        np.testing.assert_array_equal(part.data, row[None])


def test_parts_are_added_in_the_order_of_trees_and_devices() -> None:
    """In floating point another order gives other bits: the small number survives only where it comes last."""
    three = mesh(3)
    one, other = ({"x": shard(np.asarray(x), three)} for x in ([1e17, 1.0, -1e17], [0.0, 2.0, 3.0]))
    found = add_parts([one, other], three)["x"]
    assert found.devices() == {three.devices.flat[0]}
    assert found == (((((1e17 + 1.0) - 1e17) + 0.0) + 2.0) + 3.0) == 5.0
    assert add_parts([other, one], three)["x"] == (((((0.0 + 2.0) + 3.0) + 1e17) + 1.0) - 1e17) == 0.0
