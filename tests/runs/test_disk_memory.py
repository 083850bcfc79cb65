"""A client memory on disk: what was committed stays readable, and damage is seen."""

from pathlib import Path

import numpy as np
import pytest

import fedmime as fm
from engine.setting import same
from fedmime.runs.slots import SlotFile

BLANK = {"w": np.zeros((2, 3)), "b": np.zeros((), np.float32)}


def _value(rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {"w": rng.normal(size=(2, 3)), "b": np.float32(rng.normal())}


def test_disk_goes_on_from_what_was_committed(tmp_path: Path) -> None:
    """Whatever is written after a commit, the index of that commit finds the values of that moment."""
    rng, path = np.random.default_rng(1), tmp_path / "kept"
    memory, everyone = fm.DiskMemory(BLANK, path), list(range(100))
    for _ in range(6):
        for _ in range(4):
            clients = rng.choice(100, 20, replace=False).tolist()
            memory = memory.write(clients, [_value(rng) for _ in clients])
        committed, index = memory.read(everyone), memory.commit()
        for _ in range(3):
            clients = rng.choice(100, 30, replace=False).tolist()
            memory = memory.write(clients, [_value(rng) for _ in clients])
        assert not same(memory.read(everyone), committed)
        memory = fm.DiskMemory(BLANK, path, index)
        assert same(memory.read(everyone), committed)
        assert len(memory) == len(index)


def test_disk_takes_room_for_clients_seen_only(tmp_path: Path) -> None:
    memory = fm.DiskMemory(BLANK, tmp_path / "kept")
    rng = np.random.default_rng(0)
    for client in (10**9, 5, 10**9):
        memory = memory.write([client], [_value(rng)])
    assert len(memory) == 2
    assert (tmp_path / "kept").stat().st_size <= 64 * (52 + 4)  # a checksum each


def test_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    memory = fm.DiskMemory(BLANK, path).write([1, 2], [_value(np.random.default_rng(0))] * 2)
    index = memory.commit()
    with path.open("r+b") as file:
        file.truncate(60)
    with pytest.raises(fm.CheckpointError, match=r"kept.*holds 1 clients.*names 2"):
        fm.DiskMemory(BLANK, path, index)


def test_a_damaged_value_is_refused_and_no_other(tmp_path: Path) -> None:
    rng, path = np.random.default_rng(0), tmp_path / "kept"
    values = [_value(rng) for _ in range(3)]
    memory = fm.DiskMemory(BLANK, path).write([4, 5, 6], values)
    index, slot = memory.commit(), 52 + 4
    with path.open("r+b") as file:
        file.seek(index[5] * slot + 7)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))
    again = fm.DiskMemory(BLANK, path, index)
    assert same(again.read([4, 6]), [values[0], values[2]])
    with pytest.raises(fm.CheckpointError, match="what the client at position 5 kept is damaged"):
        again.read([5])


def test_every_held_commit_stays_readable_until_it_is_released(tmp_path: Path) -> None:
    """A slot is used again only when the last commit that needs it is gone, so the file stays as small as it can."""
    rng, path = np.random.default_rng(0), tmp_path / "kept"
    memory, indexes, values = fm.DiskMemory(BLANK, path), {}, {}
    for name in (1, 2, 3):
        values[name] = _value(rng)
        indexes[name] = memory.write([9], [values[name]]).commit(name)
    memory.write([9], [_value(rng)])
    for name, index in indexes.items():
        assert same(fm.DiskMemory(BLANK, path, index, indexes).read([9]), [values[name]])
    memory.release(2)
    last = memory.write([8], [values[1]]).commit(4)
    assert last[8] == indexes[2][9]
    assert len({last[8], last[9], indexes[1][9], indexes[3][9]}) == 4
    assert same(memory.read([8]), [values[1]])


def test_workers_write_and_the_driver_adopts(tmp_path: Path) -> None:
    """What others have written becomes a client's own in one step; what is not adopted changes nothing."""
    rng, path = np.random.default_rng(0), tmp_path / "kept"
    values = [_value(rng) for _ in range(4)]
    memory = fm.DiskMemory(BLANK, path).write([4, 5], values[:2])
    index = memory.commit(1)
    there = SlotFile(path, BLANK)
    first, second = memory.take(2)
    assert not {first, second} & set(index.values())
    there.write({first: values[2], second: values[3]})
    assert same(memory.read([4, 5]), values[:2])
    memory.adopt({5: first, 9: second})
    assert same(memory.read([4, 5, 9]), [values[0], values[2], values[3]])
    assert memory.slots([4, 5, 6]) == {4: index[4], 5: first}
    assert same(fm.DiskMemory(BLANK, path, index).read([4, 5, 9]), [*values[:2], BLANK])
    (third,) = memory.take(1)
    memory.adopt({5: third})
    assert memory.take(1) == [first]  # of no commit, and nobody's any more


def test_slots_that_were_taken_are_nobody_elses(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    memory = fm.DiskMemory(BLANK, tmp_path / "kept").write([1], [_value(rng)])
    taken = memory.take(3)
    memory.commit(1)
    memory.write([1, 2, 3], [_value(rng) for _ in range(3)])
    memory.commit(2)
    assert not set(taken) & set(memory.slots([1, 2, 3]).values())
    memory.give_back(taken[:2])
    assert set(memory.take(2)) == set(taken[:2])
