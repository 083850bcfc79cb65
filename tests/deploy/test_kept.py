"""Kept values: whatever a server may still ask for is there, and nothing else stays."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmime.deploy.kept import DiskShelf, MemoryShelf, Shelf, prune


@pytest.fixture(params=["memory", "disk"])
def shelf(request: pytest.FixtureRequest, tmp_path: Path) -> Shelf:
    return MemoryShelf() if request.param == "memory" else DiskShelf(tmp_path / "kept")


def test_values_by_round(shelf: Shelf) -> None:
    assert shelf.rounds() == []
    assert shelf.read(3) is None
    shelf.write(3, b"old")
    shelf.write(3, b"new")
    shelf.write(10, b"")
    assert sorted(shelf.rounds()) == [3, 10]
    assert (shelf.read(3), shelf.read(10)) == (b"new", b"")
    shelf.remove(3)
    assert shelf.rounds() == [10]


def test_values_on_disk_are_private_and_checked(tmp_path: Path) -> None:
    shelf = DiskShelf(tmp_path / "kept")
    shelf.write(1, b"value")
    path = tmp_path / "kept" / "1.kept"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert DiskShelf(tmp_path / "kept").read(1) == b"value"
    for damaged in (path.read_bytes()[:-1], path.read_bytes() + b"x", b"", b"x" + path.read_bytes()[1:]):
        path.write_bytes(damaged)
        assert shelf.read(1) is None
    (tmp_path / "kept" / "notes.kept").write_bytes(b"")
    assert shelf.rounds() == [1]


# A round is accepted or not, and the client takes part in it or not; now and then the server is killed.
ROUNDS = st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 9)), min_size=1, max_size=40)


@given(ROUNDS, st.integers(1, 4), st.integers(1, 3))
def test_every_value_that_a_resumed_server_may_ask_for_is_there(
    events: list[tuple[bool, bool, int]], every: int, keep: int
) -> None:
    """The server saves every few rounds, keeps a few checkpoints, and after a kill goes on from any of them."""
    shelf, t, current = MemoryShelf(), 0, -1
    checkpoints = {0: -1}
    for takes_part, accepted, fate in events:
        if takes_part:
            since = max(0, (t // every - keep) * every)
            prune(shelf, current, since)
            assert current == -1 or shelf.read(current) == b"%d" % current
            shelf.write(t, b"%d" % t)
            current = t if accepted else current
            assert len(shelf.rounds()) <= every * (keep + 1) + 2
        t += 1
        if t % every == 0:
            checkpoints[t] = current
            checkpoints = {n: checkpoints[n] for n in sorted(checkpoints)[-keep:]}
        if fate == 0:
            t = sorted(checkpoints)[0]
            current = checkpoints[t]
            checkpoints = {n: kept for n, kept in checkpoints.items() if n <= t}
