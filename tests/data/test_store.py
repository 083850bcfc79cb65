"""The client store: what goes in comes out, damage is noticed, nothing is left half-written."""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import fedmime as fm
from fedmime.data import Population, digits, from_arrays, synthetic
from fedmime.data.store import from_store
from fedmime.data.views import capped, mapped
from fedmime.data.writer import seal
from fedmime.engine.sampling import Schedule
from fedmime.errors import ConfigError, DataError
from fedmime.files import sha256_of


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


def crafted(store: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a schema, say the sizes and sums of the files as they now are, and seal it as a writer would."""
    schema = json.loads((store / "schema.json").read_text())
    for name in schema["files"]:
        schema["files"][name] = {"bytes": (store / name).stat().st_size, "sha256": sha256_of(store / name)}
    change(schema)
    schema["seal"] = seal(schema)
    (store / "schema.json").write_text(json.dumps(schema))


def rewrite(store: Path, name: str, values: list[int] | bytes) -> None:
    """Replace a file and have the schema vouch for it."""
    (store / name).write_bytes(values if isinstance(values, bytes) else np.asarray(values, "<i8").tobytes())
    crafted(store, lambda schema: None)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("written") / "small"
    columns = {"x": np.arange(2.0), "words": [b"one", b"two"]}
    from_arrays({"b": columns, "a": columns, "c": columns}).save(path)
    return path


@pytest.fixture
def small(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "small"))


def refused(store: Path, words: str) -> None:
    """Opening refuses a store, and so does a check of everything, in one line."""
    for verify in (False, True):
        with pytest.raises(DataError, match=words) as caught:
            from_store(store, verify)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("ids.bin", b"aac", "client id 'a' appears twice; ids must be unique"),
        ("ids.bin", b"cab", "client id .* is not in sorted order"),
        ("ids.bin", b"\xffac", "client id .* is "),
        ("ids.order.bin", [1, 0, 3], "does not name each of 3 clients once"),
        ("ids.order.bin", [1, 0, -1], "does not name each of 3 clients once"),
        ("ids.order.bin", [1, 1, 2], "does not name each of 3 clients once"),
        ("ids.starts.bin", [0, 2, 1, 3], "must rise from 0 to 3"),
        ("ids.starts.bin", [0, 1, 2, 9], "must rise from 0 to 3"),
        ("starts.bin", [0, 5, 4, 6], "must rise from 0 to 6"),
        ("starts.bin", [1, 2, 4, 6], "must rise from 0 to 6"),
        ("field_1.starts.bin", [0, 3, 6, 9, 12, 15, 99], "must rise from 0 to 18"),
        ("field_1.starts.bin", [0, 9, 6, 9, 12, 15, 18], "must rise from 0 to 18"),
    ],
)
def test_contents_that_make_no_sense_are_refused(small: Path, name: str, values: Any, words: str) -> None:
    rewrite(small, name, values)
    refused(small, words)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.update(fields={}), "'fields' is empty"),
        (lambda s: s.update(files={}), "'files' must list"),
        (lambda s: s["files"].pop("field_0.bin"), "'files' must list .* 'field_0.bin'"),
        (lambda s: s["files"].update({"../x": {"bytes": 1, "sha256": ""}}), "'files' must list"),
        (lambda s: s["files"].update({"ids.bin": 3}), "file 'ids.bin' must be dict, got 3"),
        (lambda s: s["files"]["ids.bin"].update(bytes="3"), "bytes of file 'ids.bin' must be int"),
        (lambda s: s["files"]["ids.bin"].pop("sha256"), "sha256 of file 'ids.bin' must be str"),
        (lambda s: s.update(children={"../..": "x"}), "'children' names '../..'"),
        (lambda s: s.update(children={"test": "x"}), "'test' is missing"),
        (lambda s: s.update(children=["test"]), "'children' must be dict"),
        (lambda s: s.pop("clients"), "'clients' must be int, got None"),
        (lambda s: s.update(clients=True), "'clients' must be int, got True"),
        (lambda s: s.update(clients=-1), "counts are not negative"),
        (lambda s: s.update(clients=10**30), "its schema says"),
        (lambda s: s.update(examples=10**30), "which no file can hold"),
        (lambda s: s.update(examples=7), "must rise from 0 to 7"),
        (lambda s: s.update(name=None), "'name' must be str"),
        (lambda s: s["fields"].update(x=3), "field 'x' is 3; accepted are"),
        *(
            (lambda s, told=told: s["fields"]["x"].update(told), "field 'x' is .*; accepted are")
            for told in (
                {"dtype": "|O"},
                {"dtype": "<f3"},
                {"dtype": "u"},
                {"dtype": "<u1,<f8"},
                {"dtype": ["<f8"]},
                {"dtype": "bytes"},
                {"shape": [-1]},
                {"shape": [1.5]},
                {"shape": 2},
                {"shape": [1] * 99},
                {"ragged": 1},
                {"other": 1},
            )
        ),
        (lambda s: s["fields"]["x"].update(shape=[10**40]), "which no file can hold"),
        (lambda s: s["fields"]["x"].update(shape=[2]), "its schema says"),
        (lambda s: s["fields"]["x"].update(shape=[0]), "its schema says"),
    ],
)
def test_schemas_that_make_no_sense_are_refused(small: Path, change: Callable[[dict], object], words: str) -> None:
    crafted(small, change)
    refused(small, words)


@pytest.mark.parametrize("text", ["", "[]", "3", "{", '{"seal": 1}', "[" * 100_000, "9" * 5000, "\x00"])
def test_damaged_schemas_are_refused(small: Path, text: str) -> None:
    (small / "schema.json").write_text(text)
    refused(small, r"schema\.json cannot be read")


def test_files_in_no_list_and_links_are_refused(store: Path, tmp_path: Path) -> None:
    (store / "field_2.bin").write_bytes(b"x")
    refused(store, "'field_2.bin' is in no list")
    (store / "field_2.bin").unlink()
    for name in ("test", "schema.json"):
        (store / name).rename(tmp_path / name)
        (store / name).symlink_to(tmp_path / name)
        refused(store, "not a plain")
        (store / name).unlink()
        (tmp_path / name).rename(store / name)
    from_store(store, verify=True)


def test_a_stamp_that_is_a_link_is_replaced_not_followed(store: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    (store / "stamp.json").unlink()
    (store / "stamp.json").symlink_to(tmp_path / "mine")
    from_store(store)
    assert (tmp_path / "mine").read_text() == "precious"
    assert not (store / "stamp.json").is_symlink()


@pytest.mark.parametrize("name", ["field_0.bin", "starts.bin", "ids.bin", "test/field_0.bin", "test/field_1.bin"])
def test_a_file_cut_while_in_use_is_an_error_and_not_the_end_of_the_process(store: Path, name: str) -> None:
    """Whatever is made of the store asks it: a run before each cohort, and everybody who wants its test set."""
    population = from_store(store)
    view = capped(mapped(population, "view", population.fields, lambda columns, where: columns, "same"), 5)
    schedule = Schedule(3, 10, 1, None, 0, "examples")
    algorithm = fm.algorithms.fedavg(0.1)
    assert len(schedule.cohort(algorithm, view, 0).members) == 3
    with (store / name).open("r+b") as file:
        file.truncate(3)
    for each in (population, view):
        for look in (lambda each=each: schedule.cohort(algorithm, each, 1), lambda each=each: each.test, each.check):
            with pytest.raises(DataError, match=r"was cut to 3 bytes while in use"):
                look()


def test_a_run_ends_when_its_store_is_cut(store: Path) -> None:
    seen = []

    def cut(info: fm.Info, measured: Mapping[str, float]) -> None:
        seen.append(info.round)
        with (store / "field_0.bin").open("r+b") as file:
            file.truncate(0)

    problem = fm.models.logistic(input_shape=(8, 8, 1), classes=10)
    with pytest.raises(DataError, match=r"field_0\.bin' was cut to 0 bytes while in use"):
        fm.simulate(fm.algorithms.fedavg(0.1), problem, from_store(store), 9, 3, batch_size=10, on_round=cut)
    assert len(seen) < 9


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
