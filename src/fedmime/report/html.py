"""One HTML file that says everything about some runs: opens from disk, needs no network, runs no script."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from markupsafe import Markup

from fedmime.report import settings
from fedmime.report.comparable import warning
from fedmime.report.figures import diagnostics, standard
from fedmime.report.headline import Headline, cells, columns, common_target, headline, problems
from fedmime.report.picture import Picture, svg, themed
from fedmime.report.recorded import Recorded
from fedmime.report.style import dark_colours, lines
from fedmime.report.words import goal, listed

_MOST_NAMED = 5  # runs in a sentence


@dataclasses.dataclass(frozen=True)
class Table:
    """A table: what is in it is text and is escaped. The first column names its row; `marked` cells stand out."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    marked: frozenset[tuple[int, int]] = frozenset()  # row and column


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of a report. Its text is escaped unless it is `markupsafe.Markup`, which its author vouches for."""

    title: str
    html: str | Markup = ""
    figures: Sequence[Picture] = ()
    table: Table | None = None


def write(
    path: str | Path,
    title: str,
    runs: Sequence[Recorded] = (),
    sections: Sequence[Section] = (),
    target: float | None = None,
    pictures: Sequence[Picture] | None = None,
) -> Path:
    """Write the report of runs, and of what others add to it; gives its path.

    `target` is the accuracy to reach, by default what the runs were asked for or what all of them reached; `pictures`
    are the figures of `standard` and `diagnostics` if they have been drawn already.
    """
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(page(title, runs, sections, target, pictures), encoding="utf-8")
    return file


def page(
    title: str,
    runs: Sequence[Recorded] = (),
    sections: Sequence[Section] = (),
    target: float | None = None,
    pictures: Sequence[Picture] | None = None,
) -> str:
    """The report as text."""
    wanted = common_target(runs) if target is None else target
    rows = [headline(run, wanted) for run in runs]
    apart = warning(runs)
    drawn = [*standard(runs, wanted), *diagnostics(runs)] if pictures is None else list(pictures)
    return render(
        title,
        sections,
        looks=lines(run.label for run in runs),
        about=settings.about(runs),
        warning=apart,
        sentence="" if apart else _sentence(rows, wanted),
        target=None if wanted is None else goal(wanted),
        chosen=target is None and wanted is not None and all(run.config.get("target") is None for run in runs),
        head=[name for name, *_ in columns(rows)],
        headline=list(zip(rows, cells(rows, wanted, compared=not apart), strict=True)),
        problems=[(run.label, found) for run in runs if (found := problems(run))],
        pictures=drawn,
        differing=settings.differing(runs),
        shared=settings.shared(runs),
        provenance=settings.provenance(runs),
        commands=settings.commands(runs),
    )


def render(title: str, sections: Sequence[Section], looks: Mapping[str, dict[str, Any]], **parts: Any) -> str:
    """A page of sections; `parts` are what the template shows before and after them, `looks` the lines of labels."""
    none = {"about": "", "warning": "", "sentence": "", "target": None, "chosen": False, "differing": {}, "shared": {}}
    empty = dict.fromkeys(("head", "headline", "problems", "pictures", "provenance", "commands"), ())
    return _template().render(
        title=title,
        sections=sections,
        keys={label: _key(look) for label, look in looks.items()},
        colours=[(light[1:], light, dark) for light, dark in dark_colours().items()],
        **(none | empty | parts),
    )


def _sentence(rows: Sequence[Headline], target: float | None) -> str:
    """The comparison in words: who needed how many rounds."""
    reached = sorted((row.rounds_to_target, row.label) for row in rows if row.rounds_to_target is not None)
    if target is None or len(rows) < 2 or not reached:
        return ""
    (fewest, first), (most, last) = reached[0], reached[-1]
    told = f"{first} took {fewest:,} {'round' if fewest == 1 else 'rounds'}"
    if len(reached) == len(rows) and fewest == most:
        told = f"every run took {fewest:,} {'round' if fewest == 1 else 'rounds'}"
    elif len(reached) > _MOST_NAMED:
        told = f"{told}, the fewest, and {last} {most:,}, the most"
    else:
        told = listed([told, *(f"{label} {count:,}" for count, label in reached[1:])])
    missed = [row.label for row in rows if row.rounds_to_target is None and row.final_accuracy is not None]
    never = f" {listed(missed)} did not reach it." if missed else ""
    return f"To reach {goal(target)} test accuracy, {told}.{never}"


def _key(look: dict[str, Any]) -> Markup:
    """A piece of a run's line, as in the figures."""
    dash = look["linestyle"]
    pattern = ",".join(f"{1.8 * length:g}" for length in dash[1]) if isinstance(dash, tuple) else "none"
    shape = (
        '<svg class="key" viewBox="0 0 26 8" aria-hidden="true"><line x1="1" x2="25" y1="4" y2="4" style="{}"/></svg>'
    )
    return Markup(shape).format(f"stroke:{themed(look['color'])};stroke-dasharray:{pattern}")  # noqa: S704 - a constant


@cache
def _template() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("fedmime", "report")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["inline"] = lambda picture: Markup(svg(picture))  # noqa: S704 - Matplotlib escapes its text
    return environment.get_template("report.html")
