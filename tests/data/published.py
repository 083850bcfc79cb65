"""Write the three published formats from their descriptions, sharing no code with the readers."""

import sqlite3
import struct
import zlib
from pathlib import Path

import h5py
import msgpack
import numpy as np

Clients = dict[str, dict[str, np.ndarray]]


def images(sizes: dict[str, int], seed: int = 0) -> Clients:
    """EMNIST-like clients: pixels of paper and ink, labels of 62 classes."""
    rng = np.random.default_rng(seed)
    return {
        client: {"pixels": rng.random((n, 28, 28), np.float32), "label": rng.integers(0, 62, n, np.int32)}
        for client, n in sizes.items()
    }


def texts(**clients: list[bytes]) -> Clients:
    """Shakespeare-like clients."""
    return {client: {"snippets": objects(snippets)} for client, snippets in clients.items()}


def sentences(**clients: list[bytes]) -> Clients:
    """Stack-Overflow-like clients with all six fields."""
    made = {}
    for client, tokens in clients.items():
        n = len(tokens)
        made[client] = {
            "creation_date": objects([b"2018-02-28 19:06:18.34 UTC"] * n),
            "score": np.arange(-1, n - 1, dtype=np.int64),
            "tags": objects([b"mysql|join"] * n),
            "title": objects([b"a title"] * n),
            "tokens": objects(tokens),
            "type": objects([b"question"] * n),
        }
    return made


def objects(values: list[bytes]) -> np.ndarray:
    array = np.empty(len(values), object)
    array[:] = values
    return array


def write_hdf5(path: Path, clients: Clients, group: str = "examples", **options: object) -> Path:
    """TFF's HDF5: /examples/<client>/<field>."""
    with h5py.File(path, "w") as file:
        for client, columns in clients.items():
            for field, values in columns.items():
                dtype = h5py.string_dtype("ascii") if values.dtype == object else values.dtype
                file.create_dataset(f"{group}/{client}/{field}", data=values, dtype=dtype, **options)
    return path


def write_tff_sqlite(path: Path, splits: dict[str, Clients], index: bool = True, packed: bool = True) -> Path:
    """TFF's SQLite: one tf.train.Example a row, and the number of examples of each client."""
    connection = sqlite3.connect(path)
    connection.execute(
        "CREATE TABLE examples (split_name TEXT NOT NULL, client_id TEXT NOT NULL, "
        "serialized_example_proto BLOB NOT NULL)"
    )
    connection.execute(
        "CREATE TABLE client_metadata (client_id TEXT NOT NULL, split_name TEXT NOT NULL, "
        "num_examples INTEGER NOT NULL)"
    )
    if index:
        connection.execute("CREATE INDEX idx_examples_client_id_split ON examples (split_name, client_id)")
    for split, clients in splits.items():
        for client, columns in clients.items():
            n = len(next(iter(columns.values())))
            connection.execute("INSERT INTO client_metadata VALUES (?, ?, ?)", (client, split, n))
            for i in range(n):
                blob = example({field: values[i] for field, values in columns.items()}, packed)
                connection.execute("INSERT INTO examples VALUES (?, ?, ?)", (split, client, blob))
    connection.commit()
    connection.close()
    return path


def example(fields: dict, packed: bool = True) -> bytes:
    """A serialized tf.train.Example."""
    entries = b""
    for name, value in fields.items():
        if isinstance(value, bytes):
            feature = delimited(1, delimited(1, value))
        elif np.asarray(value).dtype.kind == "f":
            raw = [struct.pack("<f", v) for v in np.asarray(value).ravel().tolist()]
            content = delimited(1, b"".join(raw)) if packed else b"".join(b"\x0d" + r for r in raw)
            feature = delimited(2, content)
        else:
            raw = [varint(int(v) % 2**64) for v in np.asarray(value).ravel().tolist()]
            content = delimited(1, b"".join(raw)) if packed else b"".join(b"\x08" + r for r in raw)
            feature = delimited(3, content)
        entries += delimited(1, delimited(1, name.encode()) + delimited(2, feature))
    return delimited(1, entries)


def delimited(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def write_fedjax(path: Path, clients: Clients) -> Path:
    """FedJAX's SQLite: one zlib-compressed msgpack a client."""
    connection = sqlite3.connect(path)
    connection.execute(
        "CREATE TABLE federated_data (client_id BLOB NOT NULL PRIMARY KEY, data BLOB NOT NULL, "
        "num_examples INTEGER NOT NULL)"
    )
    for client, columns in clients.items():
        n = len(next(iter(columns.values())))
        connection.execute("INSERT INTO federated_data VALUES (?, ?, ?)", (client.encode(), fedjax_blob(columns), n))
    connection.commit()
    connection.close()
    return path


def fedjax_blob(columns: dict[str, np.ndarray]) -> bytes:
    packed = {}
    for field, values in columns.items():
        if values.dtype == object:
            packed[field] = msgpack.ExtType(4, msgpack.packb((values.shape, values.tolist()), use_bin_type=True))
        else:
            inner = (values.shape, values.dtype.name, values.tobytes("C"))
            packed[field] = msgpack.ExtType(1, msgpack.packb(inner, use_bin_type=True))
    return zlib.compress(bytes(msgpack.packb(packed) or b""))
