"""The three published formats: files written by the test come back equal, and so does the real subset."""

import contextlib
import lzma
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.published import Clients, example, images, sentences, texts, write_fedjax, write_hdf5, write_tff_sqlite
from fedmime.data import (
    Population,
    from_fedjax_sqlite,
    from_store,
    from_tff_hdf5,
    from_tff_sqlite,
)
from fedmime.data.example import decode
from fedmime.errors import DataError

REAL = Path(os.environ.get("FEDMIME_DATA_DIR") or Path(__file__).parents[3] / "shared" / "data" / "tff")
real = pytest.mark.skipif(not (REAL / "fed_emnist_train.h5").is_file(), reason="the real subset is not here")

CASES: dict[str, Clients] = {
    "images": images({"f0001_41": 3, "f0000_14": 1, "f0002_00": 5}),
    "texts": texts(THE_KING=[b"To be", b"or not\n"], A=[b"x" * 300], Z=[b""]),
    "sentences": sentences(b1=[b"how do i", b""], a2=[b"use a tensor ?"]),
}


def check(population: Population, clients: Clients, order: list[str]) -> None:
    assert list(population.ids) == order
    for client in order:
        columns = population.client(client)
        assert sorted(columns) == sorted(clients[client])
        for field, values in clients[client].items():
            assert columns[field].dtype == values.dtype
            np.testing.assert_array_equal(columns[field], values)
    assert population.sizes.tolist() == [len(next(iter(clients[client].values()))) for client in order]


@pytest.mark.parametrize("clients", CASES.values(), ids=CASES)
def test_every_format_reads_back_equal(clients: Clients, tmp_path: Path) -> None:
    check(from_tff_hdf5(write_hdf5(tmp_path / "a.h5", clients)), clients, sorted(clients))
    for index, packed in ((True, True), (False, False)):
        path = write_tff_sqlite(
            tmp_path / f"{index}.sqlite", {"train": clients, "test": CASES["images"]}, index, packed
        )
        check(from_tff_sqlite(path, "train"), clients, sorted(clients))
    check(from_fedjax_sqlite(write_fedjax(tmp_path / "c.sqlite", clients)), clients, list(clients))


@pytest.mark.parametrize("clients", CASES.values(), ids=CASES)
def test_every_format_goes_through_the_store(clients: Clients, tmp_path: Path) -> None:
    from_tff_hdf5(write_hdf5(tmp_path / "a.h5", clients)).save(tmp_path / "one")
    check(from_store(tmp_path / "one"), clients, sorted(clients))
    from_fedjax_sqlite(write_fedjax(tmp_path / "c.sqlite", clients)).save(tmp_path / "two")
    check(from_store(tmp_path / "two"), clients, list(clients))


def test_lzma_is_unpacked_beside_itself(tmp_path: Path) -> None:
    clients = CASES["images"]
    plain = write_tff_sqlite(tmp_path / "plain.sqlite", {"all_train": clients})
    packed = tmp_path / "emnist_all.sqlite.lzma"
    packed.write_bytes(lzma.compress(plain.read_bytes(), format=lzma.FORMAT_ALONE))
    check(from_tff_sqlite(packed, "all_train"), clients, sorted(clients))
    assert (tmp_path / "emnist_all.sqlite").read_bytes() == plain.read_bytes()
    with pytest.raises(DataError, match=r"no split 'train'; it has \['all_train'\]"):
        from_tff_sqlite(packed, "train")


def test_compressed_and_sharded_hdf5(tmp_path: Path) -> None:
    clients = images({"b": 4, "a": 2, "c": 3})
    one = write_hdf5(tmp_path / "1.h5", {"b": clients["b"], "c": clients["c"]}, compression="gzip", shuffle=True)
    two = write_hdf5(tmp_path / "2.h5", {"a": clients["a"]}, compression="lzf")
    check(from_tff_hdf5([one, two]), clients, ["a", "b", "c"])


def test_only_the_columns_asked_for(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "s.h5", CASES["sentences"])
    population = from_tff_hdf5(path, columns=["tokens"])
    assert list(population.fields) == ["tokens"]
    assert population.client("b1")["tokens"].tolist() == [b"how do i", b""]
    with pytest.raises(DataError, match="no 'words'; found 'creation_date'"):
        from_tff_hdf5(path, columns=["words"])


values = st.one_of(
    st.binary(max_size=20),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=9).map(lambda v: np.array(v, np.int64)),
    st.lists(st.floats(width=32, allow_nan=False), max_size=9).map(lambda v: np.array(v, np.float32)),
)


@given(st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=8), values, max_size=4), st.booleans())
def test_examples_decode_to_what_was_encoded(fields: dict, packed: bool) -> None:
    decoded = decode(example(fields, packed))
    assert decoded.keys() == fields.keys()
    for name, value in fields.items():
        got = decoded[name]
        if isinstance(value, bytes):
            assert got == [value]
        else:
            np.testing.assert_array_equal(got, value)
            assert len(value) == 0 or np.asarray(got).dtype == value.dtype


@given(st.binary(max_size=60))
def test_any_bytes_decode_or_are_refused(data: bytes) -> None:
    with contextlib.suppress(DataError):
        assert isinstance(decode(data), dict)


@given(st.integers(0, 200), st.integers(0, 255))
def test_a_damaged_example_decodes_or_is_refused(position: int, byte: int) -> None:
    whole = bytearray(example({"label": np.int64(300), "pixels": np.zeros(9, np.float32), "t": b"text"}))
    whole[position % len(whole)] = byte
    with contextlib.suppress(DataError):
        decode(bytes(whole[: len(whole) - position % 3]))


def test_unknown_fields_are_skipped() -> None:
    extra = b"\x10\x05" + b"\x1d\x00\x00\x00\x00" + b"\x21" + bytes(8)  # a varint, a fixed32, a fixed64
    assert decode(example({"a": b"x"}) + extra) == {"a": [b"x"]}


@real
@pytest.mark.parametrize(
    ("name", "clients", "examples"),
    [
        ("fed_emnist_train", 396, 54_503),
        ("fed_emnist_test", 710, 15_513),
        ("shakespeare_train", 694, 16_775),
        ("shakespeare_test", 694, 2_248),
        ("stackoverflow_train", 1_681, 49_926),
        ("stackoverflow_held_out", 210, 6_153),
        ("stackoverflow_test", 210, 6_468),
    ],
)
def test_the_real_subset(name: str, clients: int, examples: int, tmp_path: Path) -> None:
    columns = ["tokens"] if name == "stackoverflow_train" else None
    population = from_tff_hdf5(REAL / f"{name}.h5", columns=columns)
    assert (len(population), int(population.sizes.sum())) == (clients, examples)
    population.save(tmp_path / "store")
    back = from_store(tmp_path / "store")
    assert list(back.ids) == list(population.ids)
    for i in range(clients):
        for field, values in population.client_at(i).items():
            np.testing.assert_array_equal(back.client_at(i)[field], values)
