"""A figure with its title and caption: as files for a paper, or as SVG inside a page that may be light or dark."""

from __future__ import annotations

import dataclasses
import io
import re
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from fedmime.report.style import dark_colours, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True)
class Picture:
    """A figure of a report; `stem` names its files and its place in the page."""

    stem: str
    title: str
    figure: Figure
    caption: str = ""
    wide: bool = False  # takes the page's whole width


def save(figure: Figure, path_stem: str | Path, formats: tuple[str, ...] = ("png", "pdf")) -> list[Path]:
    """Write a figure as `stem.png` and `stem.pdf`; the same figure gives the same bytes."""
    stem = Path(path_stem)
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in formats]
    dateless = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
    with styled():
        for kind, path in zip(formats, paths, strict=True):
            figure.savefig(path, format=kind, metadata=dateless.get(kind), facecolor="white")
    return paths


def svg(picture: Picture) -> str:
    """The figure as an SVG element without ground; its colours follow the page's, its ids are its own."""
    file = io.StringIO()
    with styled():
        picture.figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, count=1, flags=re.DOTALL)
    own = re.sub(r"[^A-Za-z0-9]", "-", picture.stem)
    text = re.sub(r'\b(id="|url\(#|href="#)', rf"\g<1>{own}-", text)
    text = re.sub(r"#[0-9a-f]{6}\b", lambda found: themed(found[0]), text)
    text = re.sub(r"font: ([^;\"]*?)(\d[\d.]*px) [^;\"]*", r"font: \1\2 var(--sans)", text)  # the page's letters
    text = re.sub(r'(<svg [^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg [^>]*?) height="[^"]*"', r"\1", text, count=1)
    room = f"max-width:{7.4 * picture.figure.get_figwidth():.1f}rem"  # no larger than its letters bear
    return text.replace("<svg ", f'<svg role="img" aria-label="{escape(picture.title)}" style="{room}" ', 1)


def themed(colour: str) -> str:
    """A colour as a variable of the page, where it has another value on dark ground."""
    return f"var(--c-{colour[1:]},{colour})" if colour in dark_colours() else colour
