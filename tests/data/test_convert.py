"""Conversion: any format to the store, over several processes, continued after a break."""

import os
from pathlib import Path

import numpy as np
import pytest

from data.published import images, texts, write_fedjax, write_hdf5, write_tff_sqlite
from data.test_store import equal_columns, same
from fedmime.data import convert as conversion
from fedmime.data import emnist, from_store, shakespeare
from fedmime.data.convert import Part, convert
from fedmime.data.sources import Source
from fedmime.errors import ConfigError, DataError

CLIENTS = images({f"f{i:04d}_00": i % 5 for i in range(24)}, 3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_hdf5(tmp_path / "fed_emnist_train.h5", CLIENTS)
    write_hdf5(tmp_path / "fed_emnist_test.h5", images({"a": 3, "b": 1}, 4))
    return tmp_path


def test_several_processes_give_what_one_gives(folder: Path) -> None:
    source = Source("emnist", str(folder))
    seen: list[tuple[int, int]] = []
    one = convert(source, folder / "one", workers=1, part_examples=10)
    two = convert(source, folder / "two", workers=2, progress=lambda *args: seen.append(args), part_examples=10)
    for name in sorted(path.relative_to(one) for path in one.rglob("*.bin")):
        assert (one / name).read_bytes() == (two / name).read_bytes()
    assert seen[0] == (0, 26)
    assert seen[-1] == (26, 26)
    back, original = from_store(two), emnist(folder)
    same(back, original)
    assert back.identity() == original.identity()
    assert back.test_clients is not None
    assert original.test_clients is not None
    same(back.test_clients, original.test_clients)
    assert back.test is not None
    assert original.test is not None
    equal_columns(back.test, original.test)
    assert sorted(os.listdir(folder)) == ["fed_emnist_test.h5", "fed_emnist_train.h5", "one", "two"]


def test_a_broken_conversion_continues(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, done = Source("emnist", str(folder)), []
    whole = conversion.write_part

    def failing(source: Source, part: Part, partial: Path) -> None:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(part)
        whole(source, part, partial)

    monkeypatch.setattr(conversion, "write_part", failing)
    with pytest.raises(KeyboardInterrupt):
        convert(source, folder / "out", workers=1, part_examples=10)
    assert not (folder / "out").exists()
    kept = folder / "out.partial" / done[0].name
    damaged = folder / "out.partial" / done[1].name / "field_0.bin"
    damaged.write_bytes(bytes([damaged.read_bytes()[0] ^ 1]) + damaged.read_bytes()[1:])
    again: list[Part] = []
    monkeypatch.setattr(conversion, "write_part", lambda s, part, p: (again.append(part), whole(s, part, p)))
    assert kept.is_dir()
    convert(source, folder / "out", workers=1, part_examples=10)
    assert done[0] not in again
    assert done[1] in again  # it was damaged
    same(from_store(folder / "out"), emnist(folder))


def test_parts_of_another_source_are_thrown_away(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(conversion, "_join", stop)
        with pytest.raises(KeyboardInterrupt):
            convert(Source(str(folder / "fed_emnist_train.h5")), folder / "out", workers=1)
    write_hdf5(folder / "new.h5", images({"new": 2}, 9)).replace(folder / "fed_emnist_train.h5")
    convert(Source(str(folder / "fed_emnist_train.h5")), folder / "out", workers=1)
    assert list(from_store(folder / "out").ids) == ["new"]


def test_every_format_and_kind_of_column(tmp_path: Path) -> None:
    clients = texts(A=[b"x" * 100, b""], B=[], C=[b"z"])
    paths = [
        write_hdf5(tmp_path / "1.h5", clients),
        write_tff_sqlite(tmp_path / "2.sqlite", {"train": clients}),
        write_fedjax(tmp_path / "3.sqlite", clients),
    ]
    outs = [convert(Source(str(path)), path.with_suffix(".store"), workers=1, part_examples=1) for path in paths]
    for out in outs:
        back = from_store(out)
        assert back.sizes.tolist() == [2, 0, 1]
        assert [value for i in range(3) for value in back.client_at(i)["snippets"]] == [b"x" * 100, b"", b"z"]
    again = convert(Source(str(outs[0])), tmp_path / "copy", workers=1)
    same(from_store(again), from_store(outs[0]))


def test_a_prepared_store_is_found_again(tmp_path: Path) -> None:
    write_hdf5(tmp_path / "shakespeare_train.h5", texts(A=[b"x" * 100], B=[b"y"]))
    test = write_hdf5(tmp_path / "shakespeare_test.h5", texts(A=[b"end"]))
    source = Source("shakespeare", str(tmp_path))
    before = shakespeare(tmp_path)
    assert convert(source, source.store(), workers=1).name == "shakespeare-80.store"
    test.unlink()  # now only the store can serve it
    same(shakespeare(tmp_path), before)


def test_refusals(folder: Path) -> None:
    (folder / "there").mkdir()
    with pytest.raises(ConfigError, match="exists already"):
        convert(Source("emnist", str(folder)), folder / "there")
    with pytest.raises(ConfigError, match="workers must be a positive integer, got 0"):
        convert(Source("emnist", str(folder)), folder / "out", workers=0)
    with pytest.raises(DataError, match="neither a file nor a data set"):
        Source("nothing").open()
    (folder / "notes.txt").write_text("hello")
    with pytest.raises(DataError, match="in no known format"):
        Source(str(folder / "notes.txt")).open()


def test_a_bad_client_leaves_no_store(folder: Path) -> None:
    bad = images({"a": 2, "b": 2})
    bad["b"]["label"] = np.array([1, 62], np.int32)
    write_hdf5(folder / "fed_emnist_train.h5", bad)
    with pytest.raises(DataError, match="client 'b': label 62 is out of range"):
        convert(Source("emnist", str(folder)), folder / "out", workers=1)
    assert not (folder / "out").exists()
