"""A file of slots: values come back as they were, and several processes may write to it at once."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import fedmime as fm
from engine.setting import same
from fedmime.runs.slots import SlotFile

KINDS = st.sampled_from([np.float32, np.float64, np.int8, np.int32, np.bool_])
ARRAYS = KINDS.flatmap(lambda kind: hnp.arrays(kind, hnp.array_shapes(min_dims=0, max_dims=3, max_side=3)))


@given(st.lists(ARRAYS, min_size=1, max_size=4), st.permutations(range(5)))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_values_come_back_as_they_were(tmp_path: Path, value: list[np.ndarray], order: list[int]) -> None:
    file = SlotFile(tmp_path / "kept", value)
    file.path.unlink(missing_ok=True)
    assert len(file) == 0
    values = {slot: jax.tree.map(lambda leaf, slot=slot: np.roll(leaf, slot), value) for slot in order}
    for slot in order:  # in any order, with holes meanwhile
        file.write({slot: values[slot]})
    found = file.read([10 + slot for slot in range(6)], {10 + slot: slot for slot in range(5)})
    for slot in range(5):
        assert same(found[slot], values[slot])
        assert jax.tree.map(lambda leaf: leaf.dtype, found[slot]) == jax.tree.map(lambda leaf: leaf.dtype, value)
    assert found[5] is value  # a client without a slot
    assert len(file) == 5


def test_two_processes_write_to_their_own_slots(tmp_path: Path) -> None:
    blank = {"w": np.zeros(3)}
    one, other = SlotFile(tmp_path / "kept", blank), SlotFile(tmp_path / "kept", blank)
    one.write({0: {"w": np.ones(3)}})
    other.write({2: {"w": np.full(3, 2.0)}}, durable=True)
    one.write({1: {"w": np.full(3, 3.0)}})
    assert [value["w"][0] for value in other.read([7, 8, 9], {7: 0, 8: 1, 9: 2})] == [1.0, 3.0, 2.0]


def test_a_slot_that_was_never_written_is_damaged(tmp_path: Path) -> None:
    file = SlotFile(tmp_path / "kept", np.zeros(3))
    file.write({2: np.ones(3)})
    for slot in (0, 3):  # a hole, and one behind the end
        with pytest.raises(fm.CheckpointError, match="what the client at position 5 kept is damaged"):
            file.read([5], {5: slot})
