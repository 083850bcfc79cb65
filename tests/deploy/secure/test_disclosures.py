"""What was revealed is remembered, by a node that is started again, too."""

from __future__ import annotations

import stat
from pathlib import Path

from fedmime.deploy.secure.disclosures import Disclosures


def test_one_sum_of_an_exchange_is_revealed() -> None:
    record = Disclosures()
    assert record.admit("3 points", (0, 1, 2))
    assert record.admit("3 points", (0, 1, 2))
    assert not record.admit("3 points", (0, 1))
    assert not record.admit("3 points", (0, 12))
    assert record.admit("4 points", (0, 1))


def test_a_node_that_is_started_again_remembers(tmp_path: Path) -> None:
    path = tmp_path / "revealed"
    assert Disclosures(path).admit("3 points", (0, 1, 2))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = Disclosures(path)
    assert again.admit("3 points", (0, 1, 2))
    assert not again.admit("3 points", (0, 1))
    assert again.admit("3 train", (0, 1))
    assert path.read_text().count("\n") == 2


def test_a_line_that_was_cut_off_admits_nothing_else(tmp_path: Path) -> None:
    """A process that was killed while it wrote has not answered; what it wrote may at worst refuse too much."""
    path = tmp_path / "revealed"
    path.write_text("\n3 points 0123\n4 poi")
    record = Disclosures(path)
    assert not record.admit("3 points", (0, 1, 2))
    assert record.admit("4 points", (0, 1, 2))
    assert not Disclosures(path).admit("4 points", (0, 1, 3))
