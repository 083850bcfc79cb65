"""Turn any source into a store: in parts, over the cores, taken up again where it was broken off."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import numpy as np

from fedmime.data.integrity import check, remember
from fedmime.data.maps import Maps
from fedmime.data.population import Population
from fedmime.data.sources import Source
from fedmime.data.store import TEST_CLIENTS, StoredIds, finish
from fedmime.data.writer import INDEX, StoreWriter
from fedmime.errors import ConfigError, DataError
from fedmime.files import whole_directory, whole_file

PART_EXAMPLES = 200_000
TRAIN = "train"
Progress = Callable[[int, int], None]  # clients done, clients in all


@dataclasses.dataclass(frozen=True)
class Part:
    """A run of clients that one process writes."""

    role: str
    start: int
    stop: int

    @property
    def name(self) -> str:
        """Its directory."""
        return f"{self.role}-{self.start:09d}-{self.stop:09d}"


def convert(
    source: Source,
    out: str | os.PathLike[str],
    workers: int | None = None,
    progress: Progress | None = None,
    part_examples: int = PART_EXAMPLES,
) -> Path:
    """Write the store of a source at `out`, which must not exist.

    Finished parts wait in `out.partial`; a second call with the same source continues from them. With several
    `workers` (by default, the cores) parts are written by processes of their own.
    """
    target = Path(out)
    if target.exists():
        raise ConfigError(f"{str(target)!r} exists already; choose another path or remove it first")
    workers = os.cpu_count() or 1 if workers is None else workers
    if workers < 1:
        raise ConfigError(f"workers must be a positive integer, got {workers!r}")
    _opened.cache_clear()  # the files may have changed since an earlier call
    population = _opened(source)
    partial = target.with_name(f"{target.name}.partial")
    parts = list(_parts(population, part_examples))
    _resume(partial, {"identity": population.identity(), "parts": [part.name for part in parts]})
    _write_parts(source, parts, partial, workers, progress)
    with whole_directory(target) as directory:
        if population.test_clients is not None:
            _join(
                population.test_clients, [p for p in parts if p.role == TEST_CLIENTS], partial, directory / TEST_CLIENTS
            )
        _join(population, [p for p in parts if p.role == TRAIN], partial, directory)
    remember(target)
    shutil.rmtree(partial)
    _opened.cache_clear()  # let go of the source's files
    return target


def _parts(population: Population, part_examples: int) -> Iterator[Part]:
    """Cut the clients into runs of about so many examples."""
    roles = [(TRAIN, population)]
    if population.test_clients is not None:
        roles.append((TEST_CLIENTS, population.test_clients))
    for role, clients in roles:
        which = (np.cumsum(clients.sizes) - clients.sizes) // part_examples + np.arange(len(clients)) // part_examples
        cuts = [0, *(np.flatnonzero(np.diff(which)) + 1).tolist(), len(clients)]
        for start, stop in itertools.pairwise(cuts):
            yield Part(role, start, stop)


def _resume(partial: Path, plan: dict[str, object]) -> None:
    """Keep the finished parts of the same plan; those of another are thrown away."""
    file = partial / "plan.json"
    if partial.exists() and (not file.is_file() or json.loads(file.read_text(encoding="utf-8")) != plan):
        shutil.rmtree(partial)
    partial.mkdir(parents=True, exist_ok=True)
    with whole_file(file) as temporary:
        temporary.write_text(json.dumps(plan), encoding="utf-8")


def _write_parts(source: Source, parts: list[Part], partial: Path, workers: int, progress: Progress | None) -> None:
    total = sum(part.stop - part.start for part in parts)
    waiting = [part for part in parts if not _finished(partial / part.name)]
    done = total - sum(part.stop - part.start for part in waiting)

    def tell(part: Part | None) -> None:
        nonlocal done
        done += part.stop - part.start if part else 0
        if progress:
            progress(done, total)

    tell(None)
    if workers == 1 or len(waiting) <= 1:
        for part in waiting:
            write_part(source, part, partial)
            tell(part)
        return
    # Processes start from nothing: a forked copy of a process that runs JAX can hang.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(waiting)), mp_context=context) as pool:
        tasks = {pool.submit(write_part, source, part, partial): part for part in waiting}
        try:
            for task in as_completed(tasks):
                task.result()
                tell(tasks[task])
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def write_part(source: Source, part: Part, partial: Path) -> None:
    """Write one run of clients as a small store."""
    population = _opened(source)
    clients = population if part.role == TRAIN else population.test_clients
    assert clients is not None
    with whole_directory(partial / part.name) as directory:
        writer = StoreWriter(directory, part.name, clients.fields)
        try:
            for index in range(part.start, part.stop):
                writer.add(clients.ids[index], clients.client_at(index))
            writer.finish(part.name, children={})
        finally:
            writer.close()


@functools.lru_cache(maxsize=1)
def _opened(source: Source) -> Population:
    """One opening for all parts that a process writes."""
    return source.open()


def _finished(directory: Path) -> bool:
    """Whether a part is there and whole; a damaged one is removed."""
    if not directory.exists():
        return False
    try:
        check(directory, verify=True)
    except DataError:
        shutil.rmtree(directory)
        return False
    return True


def _join(population: Population, parts: list[Part], partial: Path, directory: Path) -> None:
    """One store out of parts."""
    directory.mkdir(exist_ok=True)
    writer = StoreWriter(directory, population.name, population.fields)
    try:
        for part in parts:
            folder = partial / part.name
            clients = part.stop - part.start
            sizes = np.diff(np.fromfile(folder / "starts.bin", INDEX)).tolist()
            writer.add_part(folder, list(StoredIds(Maps(), folder, clients)), sizes)
        finish(writer, population)
    finally:
        writer.close()
