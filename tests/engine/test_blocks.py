"""Memory that comes back when the last array that refers to it is gone, and not before."""

import gc

import jax
import numpy as np
import pytest

from fedmime.engine import blocks

SIZE = blocks.SMALL + 64


@pytest.fixture(autouse=True)
def _nothing_spare():
    blocks._spare.clear()
    yield
    blocks._spare.clear()


def test_it_comes_back_with_the_last_view() -> None:
    first = blocks.lent(SIZE)
    place, view = first.ctypes.data, first[64:].view(np.float32).reshape(2, -1)[1]
    del first
    assert blocks.lent(SIZE).ctypes.data != place
    view[:] = 1.0
    del view
    assert place in {blocks.lent(SIZE).ctypes.data for _ in range(2)}


def test_a_device_array_made_of_it_keeps_it() -> None:
    memory = blocks.lent(SIZE)
    start = -memory.ctypes.data % 64
    host = memory[start : start + blocks.SMALL].view(np.float32)
    host[:] = np.arange(host.size)
    device = jax.device_put(host)
    del host, memory
    gc.collect()
    for _ in range(3):
        blocks.lent(SIZE)[:] = 255
    assert np.array_equal(np.asarray(device), np.arange(device.size, dtype=np.float32))


def test_little_is_not_kept_and_not_too_much(monkeypatch) -> None:
    blocks.lent(100)
    assert not blocks._spare
    monkeypatch.setattr(blocks, "LARGEST", 2 * SIZE)
    held = [blocks.lent(SIZE) for _ in range(4)]
    del held
    assert len(blocks._spare) == 2
