"""Populations that travel to other processes: a store as its path, data in memory as a few large arrays."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np

import fedmime as fm
from data.published import images, write_hdf5
from fedmime.data.views import capped


def _population() -> fm.data.Population:
    rng = np.random.default_rng(0)
    clients = {f"c{i}": {"x": rng.normal(size=(n, 3)), "y": rng.integers(0, 9, n)} for i, n in enumerate((2, 0, 5, 1))}
    return fm.data.from_arrays(clients, test=clients["c2"])


def _same(one: fm.data.Population, other: fm.data.Population) -> None:
    assert list(one.ids) == list(other.ids)
    assert one.sizes.tolist() == other.sizes.tolist()
    assert one.identity() == other.identity()
    for index in range(len(one)):
        ours, theirs = one.client_at(index), other.client_at(index)
        assert ours.keys() == theirs.keys()
        for name in ours:
            np.testing.assert_array_equal(ours[name], theirs[name])


def test_data_in_memory_travels_in_one_piece() -> None:
    population, buffers = _population(), []
    sent = pickle.dumps(population.portable(), protocol=5, buffer_callback=buffers.append)
    assert len(buffers) <= 2 + len(population.fields)  # sizes and starts beside the columns
    there = pickle.loads(sent, buffers=buffers)
    _same(there, population)
    assert there.resident
    assert there.test is None


def test_clients_are_views_of_what_was_sent() -> None:
    read = _population().portable().client_at
    assert np.shares_memory(read(0)["x"].base, read(2)["x"].base)


def test_a_store_travels_as_its_path(tmp_path: Path) -> None:
    _population().save(tmp_path / "store")
    stored = fm.data.from_store(tmp_path / "store")
    sent = pickle.dumps(stored.portable())
    assert len(sent) < 300
    _same(pickle.loads(sent), stored)
    assert len(pickle.dumps(stored.ids)) < 300
    assert list(pickle.loads(pickle.dumps(stored.ids))) == list(stored.ids)


def test_a_view_leaves_its_tests_at_home(tmp_path: Path) -> None:
    _population().save(tmp_path / "store")
    view = capped(fm.data.from_store(tmp_path / "store"), 2)
    assert view.test is not None
    there = view.portable()
    assert there.test is None
    assert view.test is not None
    assert there.client_at(2)["x"].shape == (2, 3)


def test_published_files_travel_as_the_call_that_opens_them(tmp_path: Path) -> None:
    for split, writers in (("train", {"a": 3, "b": 2}), ("test", {"a": 1})):
        write_hdf5(tmp_path / f"fed_emnist_{split}.h5", images(writers))
    emnist = fm.data.emnist(tmp_path)
    sent = pickle.dumps(emnist.portable())
    assert len(sent) < 600
    _same(pickle.loads(sent), emnist)
