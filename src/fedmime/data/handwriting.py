"""The embedded population: 62 characters in the hands of thousands of writers, drawn and not downloaded.

Shapes, labels and statistics are EMNIST's: 28 x 28 grey pixels with ink 1 on paper 0, half the examples digits, and a
writer for a client. A writer is a pure function of the seed and the writer's number: its style, its mix of classes, its
examples. So the first ten of 3,400 writers are the ten of `handwriting(clients=10)`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from fedmime.data import arrays
from fedmime.data.population import Columns, Field, Population, describe
from fedmime.data.store import TEST_CLIENTS, from_store, remember
from fedmime.data.strokes_hand import CLASSES, Hand, draw_hand, write
from fedmime.data.strokes_pen import SIDE
from fedmime.data.views import mapped
from fedmime.data.writer import StoreWriter
from fedmime.errors import ConfigError, DataError
from fedmime.files import user_cache, whole_directory
from fedmime.randomness import generator

_log = logging.getLogger(__name__)

NAME, VERSION = "handwriting", 1  # raise the version when any pixel of any writer changes
MOST_CLIENTS, LARGEST_TEST = 100_000, 20_000
_STREAM = 62  # of random numbers; sampling and partitions use others
_HELD_OUT = 9  # one in nine examples of a writer is for testing
_BLOCK = 64  # writers drawn ahead of the one that is being stored
_FIELDS = {"x": Field(np.dtype(np.float32), (SIDE, SIDE, 1)), "y": Field(np.dtype(np.int32))}
_STORED = {"x": Field(np.dtype(np.uint8), (SIDE, SIDE)), "y": Field(np.dtype(np.int32))}


def handwriting(clients: int = 3400, seed: int = 0, cache_dir: str | os.PathLike[str] | None = None) -> Population:
    """Writers with their own hands: `x` float32 [n, 28, 28, 1] in [0, 1], `y` int32 in EMNIST's order (0-9, A-Z, a-z).

    A writer has about 200 examples, some only 20 and a few many hundreds. One in nine is held out: `test_clients` has
    them by writer, `test` at most 20,000 of them pooled. Drawn once, in about half a minute, then kept in `cache_dir`
    (`$FEDMIME_CACHE`, or else the user's cache); without a place to write, they are drawn in memory every time.
    """
    _check("clients", clients, 1, MOST_CLIENTS)
    _check("seed", seed, 0, 2**63)
    try:
        folder = Path(cache_dir) if cache_dir is not None else user_cache()
        stored = _cached(folder / f"{NAME}-v{VERSION}-{clients}-{seed}", clients, seed)
    except OSError as error:
        _log.warning("handwriting: cannot be kept (%s), so it is drawn in memory", error)
        stored = _in_memory(clients, seed)
    return _with_floats(stored, seed)


def writer(seed: int, index: int) -> tuple[np.ndarray, np.ndarray]:
    """All examples of one writer: images uint8 [n, 28, 28] with ink 255, and classes int32 [n]."""
    hand, rng, examples = _writer(seed, index)
    labels = rng.choice(CLASSES, examples, p=hand.classes)
    return write(hand, labels, rng), labels.astype(np.int32)


def sheet(writers: int = 20, seed: int = 0) -> np.ndarray:
    """Every character once in the hand of each of the first writers: a grey picture (uint8), black ink on white."""
    rows = []
    for index in range(writers):
        hand, rng, _ = _writer(seed, index)
        rows.append(np.concatenate(list(write(hand, np.arange(CLASSES), rng)), axis=1))
    return 255 - np.concatenate(rows)


def _writer(seed: int, index: int) -> tuple[Hand, np.random.Generator, int]:
    """A writer's style, random numbers and number of examples (log-normal: many write little, a few write much)."""
    rng = generator(seed, index, _STREAM)
    examples = int(np.clip(rng.lognormal(5.22, 0.6), 20, 1000))
    return draw_hand(rng), rng, examples


def _cached(directory: Path, clients: int, seed: int) -> Population:
    """The stored population, drawn if it is not there yet or is damaged; `OSError` if it cannot be kept."""
    stored = _opened(directory, _identity(clients, seed))
    if stored is None:
        _build(directory, clients, seed)
        stored = _opened(directory, _identity(clients, seed))
    if stored is None:
        raise OSError(f"{directory.name!r} is not a store that can be replaced")
    return stored


def _opened(directory: Path, identity: str) -> Population | None:
    """The population stored in a directory, if there is one, whole, and the one that is meant."""
    if directory.exists():
        with contextlib.suppress(DataError):
            stored = from_store(directory)
            return stored if stored.identity() == identity else None
    return None


def _build(directory: Path, clients: int, seed: int) -> None:
    """Draw and store a population; what is there already is damaged, unless another process is quicker."""
    if directory.exists():
        shutil.rmtree(directory, ignore_errors=True)
    try:
        with whole_directory(directory) as temporary:
            _store(temporary, clients, seed)
        remember(directory)
    except (OSError, ConfigError):
        if not directory.exists():
            raise


def _store(directory: Path, clients: int, seed: int) -> None:
    """Fill a directory with the store of a population, one writer at a time."""
    (directory / TEST_CLIENTS).mkdir()
    with contextlib.ExitStack() as stack:
        train, held_out = (StoreWriter(path, NAME, _STORED) for path in (directory, directory / TEST_CLIENTS))
        stack.callback(train.close)
        stack.callback(held_out.close)
        for index, (kept, tested) in enumerate(_draw_all(clients, seed)):
            train.add(_id(index), kept)
            held_out.add(_id(index), tested)
        inner = held_out.finish(describe(NAME, VERSION, clients, seed, TEST_CLIENTS), children={})
        train.finish(_identity(clients, seed), children={TEST_CLIENTS: inner["seal"]})


def _in_memory(clients: int, seed: int) -> Population:
    """The same population in memory."""
    kept, tested = zip(*_draw_all(clients, seed), strict=True)
    ids = [_id(index) for index in range(clients)]
    test_identity = describe(NAME, VERSION, clients, seed, TEST_CLIENTS)
    held_out = arrays.in_memory(NAME, dict(zip(ids, tested, strict=True)), _STORED, identity=test_identity)
    train = dict(zip(ids, kept, strict=True))
    return arrays.in_memory(NAME, train, _STORED, test_clients=held_out, identity=_identity(clients, seed))


def _draw_all(clients: int, seed: int) -> Iterator[tuple[Columns, Columns]]:
    """What each writer trains on and is tested on, in order. NumPy works outside Python's lock, so threads suffice."""
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for start in range(0, clients, _BLOCK):
            yield from threads.map(partial(_split, seed), range(start, min(start + _BLOCK, clients)))


def _split(seed: int, index: int) -> tuple[Columns, Columns]:
    """A writer's examples for training and for testing. Their order is chance already, so the last are held out."""
    x, y = writer(seed, index)
    cut = len(y) - max(1, len(y) // _HELD_OUT)
    return {"x": x[:cut], "y": y[:cut]}, {"x": x[cut:], "y": y[cut:]}


def _with_floats(stored: Population, seed: int) -> Population:
    """The population as it is trained on: pixels in [0, 1], and a pooled test set."""
    held_out = stored.test_clients
    assert held_out is not None

    def test() -> Columns:
        pool = held_out.pool()
        chosen = np.sort(generator(seed, 0, _STREAM + 1).permutation(len(pool["y"]))[:LARGEST_TEST])
        return _floats({name: column[chosen] for name, column in pool.items()})

    tested = mapped(held_out, NAME, _FIELDS, _floats, NAME)
    return mapped(stored, NAME, _FIELDS, _floats, NAME, test=test, test_clients=tested)


def _floats(columns: Columns, where: str = "") -> Columns:
    """The columns of a client as models take them; `where` is for those who find mistakes."""
    return {"x": np.divide(columns["x"], np.float32(255), dtype=np.float32)[..., None], "y": columns["y"]}


def _identity(clients: int, seed: int) -> str:
    return describe(NAME, VERSION, clients, seed)


def _id(index: int) -> str:
    return f"writer_{index:05d}"


def _check(name: str, value: int, least: int, most: int) -> None:
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or not least <= value <= most:
        raise ConfigError(f"handwriting: {name} must be a whole number from {least} to {most}, got {value!r}")
