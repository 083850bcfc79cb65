"""`fedmime report`: one HTML file about recorded runs, and their figures for a paper."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

if TYPE_CHECKING:
    from fedmime.report.recorded import Recorded

_NAME = "report.html"


@dataclasses.dataclass(frozen=True)
class Report:
    """Write a report of recorded runs that opens in any browser, without network."""

    runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN ...")]
    """Directories of runs, or of several runs each."""
    out: Path | None = None
    """The file to write; by default report.html in the directory, or in what several have in common."""
    target: float | None = None
    """The accuracy to reach, such as 0.75; by default what the runs were asked, or what all of them reached."""
    title: str | None = None
    """The report's heading; by default the directory's name."""
    figures: bool = False
    """Also write each figure as PNG and PDF into plots/ beside the report."""
    json: bool = False
    """Print the headline table as JSON."""


def run(args: Report) -> int:
    """Write the report; gives the exit code. Errors of the library are raised, for the dispatcher to print."""
    from fedmime.errors import ConfigError
    from fedmime.report import html, panel
    from fedmime.report.figures import diagnostics, standard
    from fedmime.report.headline import common_target
    from fedmime.report.picture import save
    from fedmime.report.recorded import load_all
    from fedmime.validation import CLOSED_UNIT, real

    if not args.runs:
        raise ConfigError("report: runs must name at least one directory, got none")
    if args.target is not None:
        real("report", "target", args.target, CLOSED_UNIT)
    home = _home(args.runs)
    runs = load_all(args.runs)
    out = args.out or home / _NAME
    if panel.several(runs):
        return _means(args, home, out)
    target = common_target(runs) if args.target is None else args.target
    pictures = [*standard(runs, target), *diagnostics(runs)]
    title = args.title or (runs[0].label if len(runs) == 1 else f"Runs in {home.resolve().name}")
    written = [html.write(out, title, runs, target=args.target, pictures=pictures)]
    if args.figures:
        written += [path for each in pictures for path in save(each.figure, out.parent / "plots" / each.stem)]
    _tell(args, written, runs, target)
    return 0


def _means(args: Report, home: Path, out: Path) -> int:
    """A panel for each directory: methods with their means over seeds."""
    from fedmime.report import panel
    from fedmime.report.picture import save
    from fedmime.report.target import Target

    target = None if args.target is None else Target(args.target)
    panels = [panel.load(path, target) for path in dict.fromkeys(args.runs)]
    title = args.title or (panels[0].title if len(panels) == 1 else f"Runs in {home.resolve().name}")
    drawn = panel.draw(panels)
    written = [panel.write(out, title, panels, drawn)]
    if args.figures:
        plots = out.parent / "plots"
        written += [path for pictures in drawn for each in pictures for path in save(each.figure, plots / each.stem)]
    if args.json:
        told = [{"title": each.title, "methods": [row.facts() for row in each.rows()]} for each in panels]
        sys.stdout.write(json.dumps({"report": str(out), "panels": told}, allow_nan=False) + "\n")
    else:
        sys.stdout.writelines(f"{path}\n" for path in written)
    return 0


def _home(paths: tuple[Path, ...]) -> Path:
    """Where the report goes: into the one directory, or into the closest that holds them all."""
    if len({path.resolve() for path in paths}) == 1:
        return paths[0]
    shared = os.path.commonpath([path.resolve() for path in paths])
    return Path(os.path.relpath(shared))


def _tell(args: Report, written: list[Path], runs: list[Recorded], target: float | None) -> None:
    from fedmime.report.comparable import warning
    from fedmime.report.headline import headline

    if apart := warning(runs):
        sys.stderr.write(f"fedmime: {apart}\n")
    if args.json:
        table = [dataclasses.asdict(headline(run, target)) for run in runs]
        found = {"report": str(written[0]), "target": target, "warning": apart or None, "runs": table}
        sys.stdout.write(json.dumps(found, allow_nan=False) + "\n")
    else:
        sys.stdout.writelines(f"{path}\n" for path in written)
