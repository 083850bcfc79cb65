"""Which populations stay on the devices for a whole run, and where their examples lie there."""

from __future__ import annotations

import numpy as np
import pytest

from engine.setting import population
from fedmime.engine.backends.local import pool
from fedmime.engine.backends.local.devices import mesh
from fedmime.engine.backends.local.pool import Pool

SIZES = (3, 0, 2, 4)
CLIENTS = population(SIZES)


def test_every_client_finds_its_examples_on_every_device() -> None:
    found = Pool.of(CLIENTS, 4, 2, mesh(2))
    assert found is not None
    assert found.starts.tolist() == [0, 3, 3, 5]
    for name, column in found.columns.items():
        assert column.devices() == set(mesh(2).devices.flat)
        for client, (start, size) in enumerate(zip(found.starts, SIZES, strict=True)):
            np.testing.assert_array_equal(column[start : start + size], CLIENTS.client_at(client)[name])


@pytest.mark.parametrize(("rounds", "cohort", "stays"), [(2, 2, True), (1, 3, False), (4, 1, True), (3, 1, False)])
def test_a_run_that_reads_less_than_is_copied_copies_by_round(rounds: int, cohort: int, stays: bool) -> None:
    assert (Pool.of(CLIENTS, rounds, cohort, mesh(1)) is not None) is stays


def test_large_populations_do_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    size = sum(column.nbytes for column in CLIENTS.pool().values())
    for most, stays in ((size, True), (size - 1, False)):
        monkeypatch.setattr(pool, "MOST_RESIDENT_BYTES", most)
        assert (Pool.of(CLIENTS, 4, 2, mesh(1)) is not None) is stays


def test_populations_that_are_read_from_a_disk_do_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CLIENTS, "resident", False)
    assert Pool.of(CLIENTS, 4, 2, mesh(1)) is None
