"""The client store: what goes in comes out, damage is noticed, nothing is left half-written."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedmime.data import Population, digits, from_arrays, synthetic
from fedmime.data.store import from_store
from fedmime.errors import ConfigError, DataError


def same(one: Population, other: Population) -> None:
    assert list(one.ids) == list(other.ids)
    assert one.fields == other.fields
    np.testing.assert_array_equal(one.sizes, other.sizes)
    for i in range(len(one)):
        equal_columns(one.client_at(i), other.client_at(i))


def equal_columns(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name, first in one.items():
        second = other[name]
        assert first.dtype == second.dtype
        assert first.shape == second.shape
        for a, b in zip(first, second, strict=True) if first.dtype == object else [(first, second)]:
            np.testing.assert_array_equal(a, b)


def test_populations_come_back_equal_with_their_identity(tmp_path: Path) -> None:
    for position, population in enumerate((digits(clients=10), synthetic(clients=7))):
        population.save(tmp_path / str(position))
        back = from_store(tmp_path / str(position))
        same(population, back)
        assert back.identity() == population.identity()
        assert back.name == population.name
        assert population.test is not None
        assert back.test is not None
        equal_columns(population.test, back.test)
        assert (back.test_clients is None) == (population.test_clients is None)
        if population.test_clients is not None and back.test_clients is not None:
            same(population.test_clients, back.test_clients)


def columns(draw: st.DrawFn, n: int) -> dict:
    sequences = st.lists(hnp.arrays(np.int16, st.integers(0, 5)), min_size=n, max_size=n)
    return {
        "a/b": draw(hnp.arrays(np.float64, (n, 2, 1))),
        "label": draw(hnp.arrays(np.uint8, n)),
        "text": draw(st.lists(st.binary(max_size=9), min_size=n, max_size=n)),
        "sequence": [np.empty(0, np.int16)] * 0 if n == 0 else draw(sequences),
    }


@st.composite
def populations(draw: st.DrawFn) -> dict:
    ids = draw(st.lists(st.text(st.characters(codec="utf-8"), max_size=6), min_size=1, max_size=5, unique=True))
    return {client: columns(draw, draw(st.integers(1, 4))) for client in ids}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(populations())
def test_any_population_comes_back(tmp_path: Path, clients: dict) -> None:
    path = tmp_path / "store"
    shutil.rmtree(path, ignore_errors=True)
    population = from_arrays({c: {k: _objects(v) for k, v in cols.items()} for c, cols in clients.items()})
    population.save(path)
    back = from_store(path)
    same(population, back)
    for client in clients:
        equal_columns(back.client(client), population.client(client))
        assert client in back.ids
    assert "not there" not in back.ids


def _objects(values: list | np.ndarray) -> np.ndarray:
    if isinstance(values, np.ndarray):
        return values
    array = np.empty(len(values), object)
    for i, value in enumerate(values):
        array[i] = value
    return array


def test_empty_clients_and_ids_keep_their_order(tmp_path: Path) -> None:
    x = np.arange(6.0).reshape(3, 2)
    from_arrays({"z": {"x": x}, "ä": {"x": x[:0]}, "a": {"x": x[:1]}}).save(tmp_path / "s")
    back = from_store(tmp_path / "s")
    assert list(back.ids) == ["z", "ä", "a"]
    assert back.ids[-1] == "a"
    assert back.ids[:2] == ["z", "ä"]
    assert back.ids.index("ä") == 1
    assert back.client("ä")["x"].shape == (0, 2)
    with pytest.raises(DataError, match="no client 'b'"):
        back.client("b")


def test_arrays_are_plain_and_read_only(tmp_path: Path) -> None:
    digits(clients=3).save(tmp_path / "s")
    x = from_store(tmp_path / "s").client_at(0)["x"]
    assert type(x) is np.ndarray
    with pytest.raises(ValueError, match="read-only"):
        x[0] = 1


@pytest.fixture
def store(tmp_path: Path) -> Path:
    digits(clients=5).save(tmp_path / "store")
    return tmp_path / "store"


@pytest.mark.parametrize("name", ["field_0.bin", "starts.bin", "ids.bin", "schema.json", "test/field_1.bin"])
def test_a_flipped_byte_is_noticed_at_opening(store: Path, name: str) -> None:
    path = store / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError) as caught:
        from_store(store)
    assert "sha256 differs" in str(caught.value) or "schema.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_flip_that_keeps_size_and_times_is_found_by_verify(store: Path) -> None:
    stamp = json.loads((store / "stamp.json").read_text())
    path = store / "field_0.bin"
    data = bytearray(path.read_bytes())
    data[7] ^= 1
    path.write_bytes(data)
    state = path.stat()
    stamp["files"]["field_0.bin"] = [state.st_size, state.st_mtime_ns, state.st_ctime_ns]
    (store / "stamp.json").write_text(json.dumps(stamp))
    with pytest.raises(DataError, match=r"'field_0\.bin': sha256 differs"):
        from_store(store, verify=True)


def test_truncated_missing_and_linked_files_are_refused(store: Path) -> None:
    field = store / "field_0.bin"
    original = field.read_bytes()
    field.write_bytes(original[:-1])
    with pytest.raises(DataError, match="bytes, expected"):
        from_store(store)
    field.unlink()
    with pytest.raises(DataError, match=r"'field_0\.bin' is missing"):
        from_store(store)
    (store / "elsewhere").write_bytes(original)
    field.symlink_to(store / "elsewhere")
    with pytest.raises(DataError, match="not a plain file"):
        from_store(store)


def test_a_copy_is_checked_once_then_trusted(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(store, tmp_path / "copy")
    from_store(tmp_path / "copy")
    monkeypatch.setattr("fedmime.data.integrity.sha256_of", lambda path: pytest.fail(f"hashed {path} again"))
    from_store(tmp_path / "copy")


def test_not_a_store(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"not a store: it has no schema\.json"):
        from_store(tmp_path)
    (tmp_path / "schema.json").write_text("{}")
    with pytest.raises(DataError, match=r"schema\.json cannot be read"):
        from_store(tmp_path)


def test_an_existing_path_is_never_overwritten(store: Path) -> None:
    with pytest.raises(ConfigError, match="exists already"):
        digits(clients=3).save(store)


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    good = from_arrays({"a": {"x": np.zeros(2)}})

    def broken(index: int) -> dict[str, np.ndarray]:
        if index == 1:
            raise OSError(28, "No space left on device")
        return {"x": np.zeros(2)}

    population = Population("broken", ["a", "b"], [2, 2], good.fields, broken, identity="x")
    with pytest.raises(OSError, match="No space"):
        population.save(tmp_path / "store")
    assert os.listdir(tmp_path) == []
