"""Faults 1 to 14: damaged, hostile and mistaken data ends in one line and exit code 3, and is never trained on."""

import logging
import lzma
import os
import resource
import sqlite3
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import jax
import msgpack
import numpy as np
import pytest

import fedmime as fm
from data.published import (
    Clients,
    delimited,
    example,
    fedjax_blob,
    images,
    texts,
    write_fedjax,
    write_hdf5,
    write_tff_sqlite,
)
from fedmime.cli import data as cli
from fedmime.data import Population, emnist, from_arrays, from_fedjax_sqlite, from_tff_hdf5, from_tff_sqlite
from fedmime.data.checksums import pin
from fedmime.data.limits import Limits
from fedmime.data.unpack import unpack_lzma
from fedmime.data.verify import examine
from fedmime.data.views import capped
from fedmime.errors import DataError, FedmimeError
from fedmime.files import sha256_of

SMALL = Limits(client_bytes=10_000_000, file_bytes=50_000_000)


def refused(action: Callable[[], object], *words: str) -> str:
    """The message of a refusal: one line, exit code 3, with these words in it."""
    with pytest.raises(DataError) as caught:
        action()
    message = str(caught.value)
    assert caught.value.exit_code == 3
    assert "\n" not in message
    for word in words:
        assert word in message
    return message


def read_all(population: Population) -> None:
    for index in range(len(population)):
        population.client_at(index)


def verify(source: Path | str, capsys: pytest.CaptureFixture[str], **options: object) -> tuple[int, str]:
    """`fedmime data verify`, as the dispatcher runs it: exit code and what it said."""
    try:
        code = cli.run(cli.Verify(str(source), quiet=True, **options))  # pyright: ignore[reportArgumentType]
    except FedmimeError as error:
        return error.exit_code, str(error)
    return code, capsys.readouterr().out


def emnist_files(folder: Path, train: Clients | None = None, test: Clients | None = None) -> Path:
    write_hdf5(folder / "fed_emnist_train.h5", train or images({"a": 3, "b": 2}))
    write_hdf5(folder / "fed_emnist_test.h5", test or images({"a": 1}))
    return folder


# 1: empty or garbage files


@pytest.mark.parametrize("content", [b"", b"\x89HDF\r\n\x1a\n", np.random.default_rng(0).bytes(5000)])
def test_garbage(content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, read in (("a.h5", from_tff_hdf5), ("b.sqlite", from_tff_sqlite), ("c.sqlite", from_fedjax_sqlite)):
        path = tmp_path / name
        path.write_bytes(content)
        refused(lambda path=path, read=read: read(path), name, sha256_of(path))
    code, message = verify(tmp_path / "a.h5", capsys)
    assert code == 3
    assert "a.h5" in message


def test_garbage_behind_a_good_start(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    path.write_bytes(b"SQLite format 3\0" + np.random.default_rng(0).bytes(5000))
    refused(lambda: from_tff_sqlite(path), "a.sqlite", sha256_of(path))
    packed = tmp_path / "b.sqlite.lzma"
    packed.write_bytes(b"]\0\0\x80\0" + np.random.default_rng(0).bytes(500))
    refused(lambda: from_tff_sqlite(packed), "b.sqlite.lzma")
    assert sorted(os.listdir(tmp_path)) == ["a.sqlite", "b.sqlite.lzma"]


# 2: truncated files


@pytest.mark.parametrize("keep", [lambda n: n - 100, lambda n: n // 2, lambda n: n - 4096])
def test_truncated(keep: Callable[[int], int], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clients = images({f"c{i}": 4 for i in range(20)})
    files = {
        write_hdf5(tmp_path / "a.h5", clients): lambda path: from_tff_hdf5(path),
        write_tff_sqlite(tmp_path / "b.sqlite", {"train": clients}): lambda path: from_tff_sqlite(path),
        write_fedjax(tmp_path / "c.sqlite", clients): lambda path: from_fedjax_sqlite(path),
    }
    for path, read in files.items():
        whole = path.read_bytes()
        path.write_bytes(whole[: keep(len(whole))])
        refused(lambda path=path, read=read: read_all(read(path)), path.name)
        assert verify(path, capsys)[0] == 3


def test_truncated_lzma_leaves_nothing(tmp_path: Path) -> None:
    packed = lzma.compress(np.random.default_rng(0).bytes(100_000), format=lzma.FORMAT_ALONE)
    (tmp_path / "a.sqlite.lzma").write_bytes(packed[:-1000])
    refused(lambda: from_tff_sqlite(tmp_path / "a.sqlite.lzma"), "cut off")
    assert os.listdir(tmp_path) == ["a.sqlite.lzma"]


# 3: one flipped byte


def test_a_flipped_byte_is_refused_before_parsing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = emnist_files(tmp_path)
    path = folder / "fed_emnist_train.h5"
    pin([path, folder / "fed_emnist_test.h5"])
    assert verify("emnist", capsys, data_dir=folder)[0] == 0
    whole = bytearray(path.read_bytes())
    for position in (0, 900, len(whole) - 5):
        damaged = bytearray(whole)
        damaged[position] ^= 4
        path.write_bytes(damaged)
        refused(lambda: emnist(folder), "sha256 differs", "fed_emnist_train.h5")
        assert verify("emnist", capsys, data_dir=folder)[0] == 3
        refused(lambda: from_tff_hdf5(path, sha256=sha256_of(folder / "fed_emnist_test.h5")), "sha256 differs")


def test_a_flipped_byte_in_sqlite_with_a_pin(tmp_path: Path) -> None:
    path = write_fedjax(tmp_path / "a.sqlite", images({"a": 2}))
    pinned = sha256_of(path)
    from_fedjax_sqlite(path, sha256=pinned)
    whole = bytearray(path.read_bytes())
    whole[-3] ^= 1
    path.write_bytes(whole)
    refused(lambda: from_fedjax_sqlite(path, sha256=pinned), "sha256 differs")


# 4: external links and external storage


def hostile(path: Path, make: Callable[[h5py.Group], None]) -> Path:
    with h5py.File(path, "w") as file:
        group = file.create_group("examples/x")
        group["label"] = np.zeros(2, np.int32)
        make(group)
    return path


def link(group: h5py.Group) -> None:
    group["pixels"] = h5py.ExternalLink("other.h5", "/examples/a/pixels")


def soft(group: h5py.Group) -> None:
    group["pixels"] = h5py.SoftLink("/examples/x/label")


def storage(group: h5py.Group) -> None:
    group.create_dataset("pixels", (2, 28, 28), "f4", external=[("secret.bin", 0, h5py.h5f.UNLIMITED)])


def virtual(group: h5py.Group) -> None:
    layout = h5py.VirtualLayout((2, 28, 28), "f4")
    layout[:] = h5py.VirtualSource("other.h5", "/examples/a/pixels", (2, 28, 28))
    group.create_virtual_dataset("pixels", layout)


@pytest.mark.parametrize("make", [link, soft, storage, virtual])
def test_nothing_outside_the_file_is_read(make: Callable[[h5py.Group], None], tmp_path: Path) -> None:
    write_hdf5(tmp_path / "other.h5", images({"a": 2}))
    (tmp_path / "secret.bin").write_bytes(np.ones((2, 28, 28), np.float32).tobytes())
    refused(lambda: from_tff_hdf5(hostile(tmp_path / "bad.h5", make)), "external storage refused", "'x'", "pixels")


def test_a_client_or_the_root_behind_a_link(tmp_path: Path) -> None:
    write_hdf5(tmp_path / "other.h5", images({"a": 2}))
    with h5py.File(tmp_path / "one.h5", "w") as file:
        file.create_group("examples")["a"] = h5py.ExternalLink("other.h5", "/examples/a")
    with h5py.File(tmp_path / "two.h5", "w") as file:
        file["examples"] = h5py.ExternalLink("other.h5", "/examples")
    for name in ("one.h5", "two.h5"):
        refused(lambda name=name: from_tff_hdf5(tmp_path / name), "external storage refused")


def test_sqlite_views_and_missing_columns(tmp_path: Path) -> None:
    path = tmp_path / "view.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE VIEW federated_data AS SELECT x'00' AS client_id, x'00' AS data, 1 AS num_examples")
    connection.commit()
    connection.close()
    refused(lambda: from_fedjax_sqlite(path), "'federated_data' is view")
    path = tmp_path / "columns.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE federated_data (client_id BLOB, payload BLOB)")
    connection.commit()
    connection.close()
    refused(lambda: from_fedjax_sqlite(path), "columns ['client_id', 'payload']", "num_examples")


# 5: size bombs


def test_a_file_cannot_claim_terabytes(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "huge.h5", "w") as file:
        file.create_dataset("examples/x/pixels", (2**31, 28, 28), "f4", chunks=(1, 28, 28))
    assert (tmp_path / "huge.h5").stat().st_size < 10_000
    refused(lambda: from_tff_hdf5(tmp_path / "huge.h5"), "claims 6,734,508,720,128 bytes", "'x'")


def test_compressed_zeros_and_huge_chunks(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "zeros.h5", "w") as file:
        zeros = np.zeros((4000, 28, 28), np.float32)
        file.create_dataset("examples/x/pixels", data=zeros, chunks=(100, 28, 28), compression="gzip")
    assert (tmp_path / "zeros.h5").stat().st_size < 100_000
    refused(lambda: from_tff_hdf5(tmp_path / "zeros.h5", limits=SMALL), "claims 12,544,000 bytes")
    with h5py.File(tmp_path / "chunk.h5", "w") as file:
        file.create_dataset("examples/x/y", (1,), "f4", chunks=(10_000_000,), maxshape=(None,), compression="gzip")
    refused(lambda: from_tff_hdf5(tmp_path / "chunk.h5", limits=SMALL), "claims 40,000,000 bytes")


def test_many_references_to_one_long_string(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "a.h5", texts(a=[b"x" * 1_000_000] * 30))
    population = from_tff_hdf5(path, limits=SMALL)
    refused(lambda: population.client_at(0), "bytes; accepted are at most 10,000,000")


def test_zlib_and_msgpack_bombs(tmp_path: Path) -> None:
    bombs = {
        "zlib": zlib.compress(bytes(60_000_000)),
        "shape": packed({"x": ext(1, ([2**40], "float32", b""))}),
        "negative": packed({"x": ext(1, ([-1], "float32", b""))}),
        "dtype": packed({"x": ext(1, ([1], "object", bytes(8)))}),
        "dtype is a number": packed({"x": ext(1, ([1], 3, bytes(4)))}),
        "values are text": packed({"x": ext(1, ([], "float32", 7))}),
        "shape is bytes": packed({"x": ext(1, (b"\x01", "float32", bytes(4)))}),
        "empty and absurd": packed({"x": ext(1, ([0, 2**62, 2**62], "float32", b""))}),
        "unnamed": packed({b"x": ext(1, ([1], "float32", bytes(4)))}),
        "deep": zlib.compress(b"\x91" * 100_000),
        "endless": zlib.compress(b"\xdd\xff\xff\xff\xff"),
        "unknown": packed({"x": msgpack.ExtType(9, b"")}),
        "list": packed([1, 2]),
        "cut": fedjax_blob({"x": np.zeros(3)})[:-4],
        "text": b"not compressed",
    }
    for name, blob in bombs.items():
        path = tmp_path / f"{name}.sqlite"
        write_fedjax(path, {"a": {"x": np.zeros(1)}})
        connection = sqlite3.connect(path)
        connection.execute("UPDATE federated_data SET data = ?", (blob,))
        connection.commit()
        connection.close()
        refused(lambda path=path: read_all(from_fedjax_sqlite(path, limits=SMALL)), "client 'a'")


def packed(content: Any) -> bytes:
    return zlib.compress(bytes(msgpack.packb(content) or b""))


def ext(code: int, content: tuple) -> msgpack.ExtType:
    return msgpack.ExtType(code, bytes(msgpack.packb(content, use_bin_type=True) or b""))


def test_an_lzma_bomb_is_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "bomb.sqlite.lzma"
    path.write_bytes(lzma.compress(bytes(60_000_000), preset=0))
    refused(lambda: unpack_lzma(path, tmp_path / "out", SMALL), "unpacks to more than the accepted 50,000,000 bytes")
    assert os.listdir(tmp_path) == ["bomb.sqlite.lzma"]


def test_bombs_stay_under_500_megabytes(tmp_path: Path) -> None:
    """In a process of its own whose memory is bounded: 2 GB of zeros in a small file, refused at the default limits."""
    with h5py.File(tmp_path / "zeros.h5", "w") as file:
        file.create_dataset("examples/x/pixels", (640_000, 28, 28), "f4", chunks=(1000, 28, 28), compression="gzip")
    script = (
        "import resource, sys\n"
        "from fedmime.data.tff import from_tff_hdf5\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n    from_tff_hdf5(sys.argv[1]).client_at(0)\n"
        "except Exception as error:\n    print(error)\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "zeros.h5")], capture_output=True, text=True, check=True
    )
    message, grown = done.stdout.strip().splitlines()
    assert "claims 2,007,040,000 bytes" in message
    assert int(grown) < 100
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > 0


# 6: missing groups and other names


def test_missing_groups_and_keys(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "a.h5", images({"a": 1}), group="samples")
    refused(lambda: from_tff_hdf5(path), "no 'examples'", "found 'samples'", "expected 'examples'")
    folder = emnist_files(tmp_path)
    with h5py.File(folder / "fed_emnist_train.h5", "a") as file:
        file.move("examples/a/pixels", "examples/a/image")
    refused(lambda: emnist(folder), "client 'a'", "no 'pixels'", "found 'image', 'label'")
    with h5py.File(tmp_path / "empty.h5", "w") as file:
        file.create_group("examples")
    refused(lambda: from_tff_hdf5(tmp_path / "empty.h5"), "holds no clients")
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["examples"] = np.zeros(3)
    refused(lambda: from_tff_hdf5(tmp_path / "data.h5"), "not a group")
    path = write_tff_sqlite(tmp_path / "b.sqlite", {"train": images({"a": 1})})
    refused(lambda: from_fedjax_sqlite(path), "'federated_data' is missing", "client_metadata")


# 7: unequal lengths


def test_unequal_lengths_name_the_client(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = images({"a": 2, "f0007_11": 3})
    bad["f0007_11"]["label"] = np.zeros(4, np.int32)
    path = write_hdf5(tmp_path / "a.h5", bad)
    refused(lambda: from_tff_hdf5(path), "'f0007_11'", "label has 4, pixels has 3")
    assert verify(path, capsys)[0] == 3
    path = write_fedjax(tmp_path / "b.sqlite", bad)
    refused(lambda: read_all(from_fedjax_sqlite(path)), "'f0007_11'", "differ in length")
    refused(lambda: from_arrays(bad), "'f0007_11'", "differ in length")


def test_counts_that_do_not_hold(tmp_path: Path) -> None:
    path = write_tff_sqlite(tmp_path / "a.sqlite", {"train": images({"a": 2, "b": 3})})
    connection = sqlite3.connect(path)
    connection.execute("UPDATE client_metadata SET num_examples = 5 WHERE client_id = 'b'")
    connection.commit()
    connection.close()
    refused(lambda: read_all(from_tff_sqlite(path)), "client 'b' has 3 examples", "promises 5")
    path = write_fedjax(tmp_path / "b.sqlite", images({"a": 2}))
    connection = sqlite3.connect(path)
    connection.execute("UPDATE federated_data SET num_examples = 9")
    connection.commit()
    connection.close()
    refused(lambda: read_all(from_fedjax_sqlite(path)), "client 'a' has 2 examples", "9")


def test_examples_that_differ_inside_a_file(tmp_path: Path) -> None:
    path = write_tff_sqlite(tmp_path / "a.sqlite", {"train": images({"a": 2})})
    for blob, words in (
        (example({"pixels": np.zeros(5, np.float32), "label": np.int64(1)}), "holds 5 values; expected 784"),
        (example({"label": np.int64(1)}), "has fields ['label']"),
        (example({"pixels": np.zeros(784, np.float32), "label": np.int64(2**40)}), "too large for int32"),
        (delimited(1, b"\xff\xff"), "not a tf.train.Example"),
        ("text", "an example is str"),
    ):
        connection = sqlite3.connect(path)
        connection.execute("UPDATE examples SET serialized_example_proto = ? WHERE rowid = 2", (blob,))
        connection.commit()
        connection.close()
        refused(lambda: read_all(from_tff_sqlite(path)), words)


# 8, 9, 10: empty, tiny and huge clients


def test_empty_clients_stay_and_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = emnist_files(tmp_path, images({"a": 0, "b": 2, "c": 0}))
    population = emnist(folder)
    assert population.sizes.tolist() == [0, 2, 0]
    assert population.client("a")["x"].shape == (0, 28, 28, 1)
    run = fm.simulate(fm.algorithms.fedavg(0.1), fm.models.logistic(), population, rounds=1, cohort_size=1)
    assert run.history["examples"].tolist() == [2]
    code, out = verify("emnist", capsys, data_dir=folder)
    assert code == 0
    assert "2 clients have no examples and will be skipped" in out


def test_a_population_without_examples_is_an_error() -> None:
    report = examine(from_arrays({"a": {"x": np.zeros((0, 2))}}))
    assert not report.ok
    assert "no client has an example" in report.errors[0]


def test_one_example_is_a_client_like_any_other(tmp_path: Path) -> None:
    population = emnist(emnist_files(tmp_path, images({"one": 1, "two": 2})))
    alone = from_arrays({"one": population.client("one")})

    def trained(batch_size: int | None) -> np.ndarray:
        algorithm = fm.algorithms.mime(fm.optimizers.momentum(), 0.1)
        run = fm.simulate(algorithm, fm.models.logistic(), alone, 2, 1, batch_size=batch_size)
        return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(run.params)])

    np.testing.assert_allclose(trained(10), trained(None), rtol=1e-6)


def test_a_huge_client_is_capped_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    sizes = {"huge": 1000} | {f"c{i}": 5 for i in range(9)}
    population = from_arrays({c: {"x": np.arange(n, dtype=np.float32)} for c, n in sizes.items()})
    assert "1 clients have over 100 times" in examine(population).warnings[0]
    with caplog.at_level(logging.WARNING):
        small = capped(population, 50)
    assert "1 of 10 clients capped at 50 examples" in caplog.text
    assert small.sizes.max() == 50
    assert small.identity() != population.identity()
    drawn = capped(population, 500, sample=20, seed=3).client("huge")["x"]
    assert len(np.unique(drawn)) == 20
    assert drawn.max() < 500
    np.testing.assert_array_equal(drawn, capped(population, 500, sample=20, seed=3).client("huge")["x"])


# 11: NaN and Inf


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_one_bad_pixel_is_reported(value: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = images({"a": 2, "f0003_01": 3})
    bad["f0003_01"]["pixels"][1, 5, 5] = value
    path = write_hdf5(tmp_path / "a.h5", bad)
    code, out = verify(path, capsys)
    assert code == 3
    assert "client 'f0003_01', field 'pixels' has 1 NaN or infinite values of 2352" in out


def test_a_nan_is_no_error_of_loading(tmp_path: Path) -> None:
    bad = images({"a": 2, "b": 3})
    bad["b"]["pixels"][0, 0, 0] = np.nan
    population = emnist(emnist_files(tmp_path, bad))
    assert np.isnan(population.client("b")["x"]).sum() == 1
    assert np.isfinite(population.client("a")["x"]).all()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_client_with_one_bad_pixel_does_not_train_and_others_do(value: float) -> None:
    pixels = np.random.default_rng(0).random((10, 28, 28, 1), np.float32)
    clients = {f"c{i}": {"x": pixels[2 * i : 2 * i + 2].copy(), "y": np.asarray([i, 7])} for i in range(5)}
    clients["c4"]["x"][1, 3, 4, 0] = value
    sound = dict(list(clients.items())[:4])
    algorithm, problem = fm.algorithms.mime(fm.optimizers.momentum(), 0.1), fm.models.logistic()
    runs = [
        fm.simulate(algorithm, problem, from_arrays(some), rounds=2, cohort_size=len(some), batch_size=1, seed=3)
        for some in (clients, sound)
    ]
    assert [run.history["refused"].tolist() for run in runs] == [[1, 1], [0, 0]]
    for with_it, without in zip(*(jax.tree.leaves(run.params) for run in runs), strict=True):
        np.testing.assert_allclose(with_it, without, rtol=1e-4, atol=1e-6)


def test_pooled_examples_must_be_finite_or_belong_to_a_client_that_can_be_left_out() -> None:
    data = {"x": np.full((2, 28, 28, 1), 0.5, np.float32), "y": np.asarray([1, 7])}
    bad = data | {"x": np.full_like(data["x"], np.nan)}
    algorithm, problem = fm.algorithms.centralized(fm.optimizers.sgd(), 0.1), fm.models.logistic()
    clients = from_arrays({"a": data, "b": bad})
    with pytest.raises(DataError, match=r"client 'b', field 'x' has 1568 NaN .* pooled"):
        fm.simulate(algorithm, problem, clients, rounds=9, cohort_size=2)
    with pytest.raises(DataError, match="pooled examples hold NaN or infinite numbers"):
        fm.simulate(algorithm, problem, capped(clients, 2), rounds=9, cohort_size=2)
    batches = [{name: column[:, None] for name, column in client.items()} for client in (data, bad, data)]
    state = algorithm.init(problem.init(jax.random.key(0)))
    with_it, info = fm.run_round(algorithm, problem, state, fm.Cohort.from_batches(batches))
    without, _ = fm.run_round(algorithm, problem, state, fm.Cohort.from_batches(batches[::2]))
    assert info.refused == (1,)
    for one, other in zip(*(jax.tree.leaves(fm.params(s)) for s in (with_it, without)), strict=True):
        np.testing.assert_array_equal(one, other)


# 12: labels out of range


@pytest.mark.parametrize("label", [62, -1])
def test_labels_out_of_range(label: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = images({"a": 2, "b": 3})
    bad["b"]["label"][1] = label
    folder = emnist_files(tmp_path, bad)
    refused(lambda: emnist(folder).client("b"), "client 'b'", f"label {label} is out of range", "0 to 61")
    code, out = verify("emnist", capsys, data_dir=folder)
    assert code == 3
    assert f"label {label}" in out
    code, out = verify(folder / "fed_emnist_train.h5", capsys, classes=62)
    assert code == 3
    assert str(label) in out


def test_a_label_out_of_range_costs_its_client_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bad, refused = images({"a": 2, "b": 3, "c": 2}), []
    bad["b"]["label"][1] = 62
    population, algorithm = emnist(emnist_files(tmp_path, bad)), fm.algorithms.mime(fm.optimizers.sgd(), 0.1)
    for weights in ("examples", "uniform"):
        given = {"weights": weights, "on_round": lambda info, _: refused.append((info.refused, info.clients))}
        fm.simulate(algorithm, fm.models.logistic(classes=62), population, rounds=2, cohort_size=3, **given)
    assert refused == [(("b",), 2)] * 4
    assert caplog.text.count("client 'b': label 62 is out of range") == 2  # once a run


# 13: wrong dtype or scale


def test_bytes_instead_of_floats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = images({"a": 2})
    bad["a"]["pixels"] = (bad["a"]["pixels"] * 255).astype(np.uint8)
    folder = emnist_files(tmp_path, bad)
    refused(lambda: emnist(folder), "'pixels' is uint8[28, 28]", "floats in [0, 1]")
    code, out = verify(folder / "fed_emnist_train.h5", capsys)
    assert code == 0
    assert "warning: client 'a', field 'pixels' lies in [0, 255]" in out


def test_floats_on_the_wrong_scale(tmp_path: Path) -> None:
    bad = images({"a": 2})
    bad["a"]["pixels"] = bad["a"]["pixels"] * 255
    refused(lambda: emnist(emnist_files(tmp_path, bad)).client("a"), "client 'a': pixels lie in", "divide by 255?")
    report = examine(from_arrays({"a": {"x": bad["a"]["pixels"]}}))
    assert "divide by 255" in report.warnings[0]


def test_clients_of_different_dtypes(tmp_path: Path) -> None:
    bad = images({"a": 2, "b": 2})
    bad["b"]["pixels"] = bad["b"]["pixels"].astype(np.float64)
    path = write_hdf5(tmp_path / "a.h5", bad)
    refused(lambda: from_tff_hdf5(path), "client 'b', field 'pixels' holds float64")
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file["examples/a/x"] = np.zeros(2, [("re", "f4"), ("im", "f4")])
    refused(lambda: from_tff_hdf5(tmp_path / "c.h5"), "client 'a', field 'x' has dtype")


# 14: duplicate client ids


def test_duplicate_ids(tmp_path: Path) -> None:
    one = write_hdf5(tmp_path / "1.h5", images({"a": 1, "b": 1}))
    two = write_hdf5(tmp_path / "2.h5", images({"b": 1}))
    refused(lambda: from_tff_hdf5([one, two]), "client id 'b'", "1.h5", "2.h5")
    path = write_tff_sqlite(tmp_path / "a.sqlite", {"train": images({"a": 1})})
    connection = sqlite3.connect(path)
    connection.execute("INSERT INTO client_metadata VALUES ('a', 'train', 1)")
    connection.commit()
    connection.close()
    refused(lambda: from_tff_sqlite(path), "client id 'a' appears twice")
    path = write_fedjax(tmp_path / "b.sqlite", images({"a": 1}))
    connection = sqlite3.connect(path)
    connection.execute("INSERT INTO federated_data SELECT 'a', data, num_examples FROM federated_data")
    connection.commit()
    connection.close()
    refused(lambda: from_fedjax_sqlite(path), "client id 'a' appears twice")
    refused(lambda: from_arrays([("a", {"x": [1]}), ("a", {"x": [2]})]), "client id 'a' appears twice")


def test_wrong_kinds_of_ids_and_counts(tmp_path: Path) -> None:
    path = write_tff_sqlite(tmp_path / "a.sqlite", {"train": images({"a": 1})})
    for statement in ("SET num_examples = -3", "SET num_examples = 'many'", "SET client_id = x'ff00'"):
        connection = sqlite3.connect(path)
        connection.execute(f"UPDATE client_metadata {statement}")
        connection.commit()
        connection.close()
        refused(lambda: from_tff_sqlite(path), "expected text and a count")
