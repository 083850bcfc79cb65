"""`fedmime data`: list, fetch, verify, convert and look at federated data."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tyro.conf import Positional

from fedmime.cli.progress import counter

if TYPE_CHECKING:
    from rich.console import Console

    from fedmime.data.stats import Stats as Found


@dataclasses.dataclass(frozen=True)
class List:
    """Show the data sets there are and which of their files are here."""

    data_dir: Path | None = None
    """Where published files are kept; by default $FEDMIME_DATA_DIR or the user's cache."""
    json: bool = False
    """Print JSON instead of a table."""


@dataclasses.dataclass(frozen=True)
class Fetch:
    """Download a published data set, check it and unpack it."""

    name: Positional[str]
    """Its name in `fedmime data list`."""
    data_dir: Path | None = None
    """Where to put it; by default $FEDMIME_DATA_DIR or the user's cache."""
    base_url: str | None = None
    """Another server with the same files."""
    quiet: bool = False
    """No progress bar."""


@dataclasses.dataclass(frozen=True)
class _Input:
    source: Positional[str]
    """A data set's name, a store, or a file in a published format."""
    data_dir: Path | None = None
    """Where published files are kept; by default $FEDMIME_DATA_DIR or the user's cache."""
    split: str = "train"
    """Which split of a TFF SQLite file."""
    vocabulary: int = 10_000
    """Words of the Stack Overflow vocabulary."""
    length: int | None = None
    """Length of sequences; by default 80 characters or 20 words."""
    max_sentences: int | None = 1000
    """Sentences kept of each Stack Overflow user."""
    quiet: bool = False
    """No progress bar."""


@dataclasses.dataclass(frozen=True)
class Verify(_Input):
    """Read every client and report what is wrong: checksums, shapes, NaN, labels, scale."""

    classes: int | None = None
    """Number of labels; by default what the data set is known to have."""
    json: bool = False
    """Print JSON instead of a table."""


@dataclasses.dataclass(frozen=True)
class Convert(_Input):
    """Write a store, which opens at once whatever its size. A broken-off conversion continues."""

    out: Path | None = None
    """The store's directory; by default beside the published files, where it is found again."""
    workers: int | None = None
    """Processes; by default one per core."""


@dataclasses.dataclass(frozen=True)
class Stats(_Input):
    """Show how many examples clients have and how their labels differ."""

    plot: Path | None = None
    """Also draw it into this PNG, SVG or PDF file: clients by size, and the label mix of every client."""
    most: int = 5000
    """Clients read for the labels."""
    json: bool = False
    """Print JSON instead of a table."""


Data = List | Fetch | Verify | Convert | Stats


def run(args: Data) -> int:
    """Do what was asked; gives the exit code. Errors of the library are raised, for the dispatcher to print."""
    actions: dict[type, Callable[..., int]] = {
        List: _list,
        Fetch: _fetch,
        Verify: _verify,
        Convert: _convert,
        Stats: _stats,
    }
    return actions[type(args)](args)


def _list(args: List) -> int:
    from rich.table import Table

    from fedmime.data import catalog
    from fedmime.data.sources import EMBEDDED

    directory = catalog.data_directory(args.data_dir)
    rows = [(name, "embedded", about) for name, about in EMBEDDED.items()]
    for dataset in catalog.DATASETS.values():
        names = [name for split in dataset.splits for name in dataset.candidates(split)]
        here = [name for name in dict.fromkeys([*names, *dataset.extra]) if (directory / name).exists()]
        here += sorted(path.name for path in directory.glob(f"{dataset.name}*.store"))
        rows.append((dataset.name, ", ".join(here) or "not here", dataset.about))
    if args.json:
        found = [dict(zip(("name", "files", "about"), row, strict=True)) for row in rows]
        _console().print_json(json.dumps({"data_dir": str(directory), "datasets": found}))
        return 0
    table = Table("data set", "files", "what", title=f"data sets (files in {directory})")
    for row in rows:
        table.add_row(*row)
    _console().print(table)
    return 0


def _fetch(args: Fetch) -> int:
    from fedmime.data import catalog, download

    url = args.base_url or catalog.TFF_URL
    with _bytes_progress(args.quiet) as progress:
        files = download.fetch(args.name, args.data_dir, progress, url if url.endswith("/") else f"{url}/")
    for path in files:
        _console().print(f"{path}", highlight=False, soft_wrap=True)
    return 0


def _verify(args: Verify) -> int:
    from fedmime.data.verify import verify
    from fedmime.errors import DataError

    known = {"emnist": 62, "handwriting": 62, "emnist-digits": 10, "digits": 10, "synthetic": 5}
    with _count_progress("reading clients", args.quiet) as progress:
        report = verify(_source(args), known.get(args.source) if args.classes is None else args.classes, progress)
    if args.json:
        _console().print_json(json.dumps({**dataclasses.asdict(report), "ok": report.ok}))
        return 0 if report.ok else DataError.exit_code
    for kind, lines in (("error", report.errors), ("warning", report.warnings), ("note", report.notes)):
        for line in lines:
            _console().print(f"{kind}: {line}", highlight=False, soft_wrap=True, markup=False)
    if report.unlisted:
        _console().print(f"error: {report.unlisted} more like these", highlight=False)
    verdict = "sound" if report.ok else "not fit to train on"
    told = f"{report.name}: {report.clients:,} clients, {report.examples:,} examples, {report.empty:,} empty: {verdict}"
    _console().print(told, highlight=False, soft_wrap=True)
    return 0 if report.ok else DataError.exit_code


def _convert(args: Convert) -> int:
    from fedmime.data.convert import convert

    source = _source(args)
    with _count_progress("writing clients", args.quiet) as progress:
        path = convert(source, args.out or source.store(), args.workers, progress)
    _console().print(f"{path}", highlight=False, soft_wrap=True)
    return 0


def _stats(args: Stats) -> int:
    from fedmime.data.plots import plot_stats
    from fedmime.data.stats import stats

    population = _source(args).open()
    found = stats(population, args.most)
    if args.json:
        _console().print_json(json.dumps(dataclasses.asdict(found), default=lambda array: array.tolist()))
    else:
        _print_stats(found, _console())
    if args.plot is not None:
        plot_stats(population, found, args.plot, args.most)
        _console().print(f"{args.plot}", highlight=False, soft_wrap=True)
    return 0


def _print_stats(found: Found, console: Console) -> None:
    from rich.table import Table

    from fedmime.data.stats import size_range

    table = Table("", "", title=found.name, show_header=False)
    table.add_row("clients", f"{found.clients:,} ({found.empty:,} empty)")
    table.add_row("examples", f"{found.examples:,} ({found.mean:,.1f} a client)")
    table.add_row("test examples", "none" if found.test_examples is None else f"{found.test_examples:,}")
    table.add_row("fields", ", ".join(f"{name}: {field}" for name, field in found.fields.items()), style="not bold")
    quantiles = "  ".join(f"{quantile}%: {size:,}" for quantile, size in found.quantiles.items())
    table.add_row("sizes", quantiles)
    if found.labels is not None:
        skew = found.labels
        table.add_row("labels", f"{int((skew.counts > 0).sum())} in all, {skew.distinct:.1f} a client")
        table.add_row("label skew", f"{skew.distance:.3f} (by chance {skew.expected:.3f}; 0 alike, 1 apart)")
    console.print(table)
    sizes = Table("examples", "clients", "", title="clients by size")
    widest = max(int(found.histogram.max(initial=1)), 1)
    for index, count in enumerate(found.histogram.tolist()):
        sizes.add_row(size_range(found.edges, index), f"{count:,}", "█" * -(-40 * count // widest))
    console.print(sizes)


def _source(args: _Input):
    from fedmime.data.sources import Source

    folder = None if args.data_dir is None else str(args.data_dir)
    return Source(args.source, folder, args.split, args.vocabulary, args.length, args.max_sentences)


def _console() -> Console:
    from rich.console import Console

    return Console()


@contextlib.contextmanager
def _count_progress(what: str, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar on standard error that counts clients."""
    with counter(quiet) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextlib.contextmanager
def _bytes_progress(quiet: bool) -> Iterator[Callable[[str, int, int | None], None] | None]:
    """A progress bar on standard error that counts bytes, one line a file."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), disable=quiet) as bar:
        tasks: dict[str, object] = {}

        def tell(name: str, done: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(name, total=total)
            bar.update(tasks[name], completed=done, total=total)  # pyright: ignore[reportArgumentType]

        yield tell
