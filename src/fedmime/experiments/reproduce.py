"""The paper's figures and tables and three of our own, one name each: computed, drawn, put on a page, and kept."""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

from fedmime.errors import ConfigError
from fedmime.experiments.reproduce_order import Order, ScaleName
from fedmime.experiments.sweep import Progress
from fedmime.experiments.sweep_files import write_json
from fedmime.report import html
from fedmime.report.picture import save
from fedmime.validation import SHARE, choice, count, real

TITLES = {
    "ablation": "Ablation: Mime beside its peers",
    "steps": "How many local steps help",
    "accuracies": "Accuracies under equal communication",
    "stability": "Stability to server rate and ε",
    "drift": "Client drift on two quadratics",
    "communication": "Cohorts of equal communication",
    "theory": "What the theory promises",
    "compression": "Accuracy against bytes",
    "privacy": "Accuracy against ε",
    "sparsity": "Sparse gradients",
}
DATA, PAGE = "data.json", "report.html"


class Reproduced(NamedTuple):
    """What a reproduction gave."""

    data: dict[str, Any]
    tables: list[tuple[str, html.Table]]
    files: list[Path]


def reproduce(
    name: str,
    scale: ScaleName = "small",
    *,
    data_dir: str | os.PathLike[str] | None = None,
    seeds: int | None = None,
    columns: Sequence[str] | None = None,
    share: float = 1.0,
    out: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    stop: Callable[[], int | None] | None = None,
) -> Reproduced:
    """Make a figure or table of the paper again, or one of our own: data, PNG and PDF, and a page.

    Args:
        scale: `"full"` is the paper's setting, `"small"` takes two cores about an hour (the table of
            accuracies: more than a day, see `share`), `"smoke"` takes seconds.
        data_dir: the published files; without, the data that comes with the package.
        seeds: how many, instead of the scale's number.
        columns: of the table of accuracies; by default all.
        share: of the scale's rounds, in the table of accuracies. With a larger one the same call goes on from there.
        out: by default `runs/reproduce/NAME-SCALE`; the same call goes on with what is there.
    """
    choice("reproduce", "name", name, tuple(TITLES))
    choice("reproduce", "scale", scale, get_args(ScaleName))
    if seeds is not None:
        count("reproduce", "seeds", seeds, least=1)
    real("reproduce", "share", share, SHARE)
    if name != "accuracies" and (columns is not None or share != 1):
        raise ConfigError(f"reproduce: columns and share are options of 'accuracies', not of {name!r}")
    folder = Path("runs/reproduce") / f"{name}-{scale}" if out is None else Path(out)
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"reproduce: out must be a directory, got {str(folder)!r}")
    asked = None if columns is None else tuple(columns)
    order = Order(scale, folder, None if data_dir is None else Path(data_dir), seeds, asked, share, progress, stop)
    return _written(name, folder, *_theory(order)) if name == "theory" else _own(name, order)


def _written(name: str, folder: Path, data: dict[str, Any], sections: list[html.Section]) -> Reproduced:
    """Data, figures and the page in the folder."""
    write_json(folder / DATA, data)
    pictures = [picture for section in sections for picture in section.figures]
    files = [path for each in pictures for path in save(each.figure, folder / each.stem)]
    page = html.write(folder / PAGE, TITLES[name], sections=sections)
    tables = [(section.title, section.table) for section in sections if section.table is not None]
    return Reproduced(data, tables, [folder / DATA, *files, page])


def _own(name: str, order: Order) -> Reproduced:
    module = importlib.import_module(f"fedmime.experiments.{name}")
    shown = importlib.import_module(f"fedmime.experiments.{name}_report")

    def publish(data: dict[str, Any]) -> Reproduced:
        return _written(name, order.out, data, shown.sections(data))

    return publish(module.run(dataclasses.replace(order, publish=publish)))


def _theory(order: Order) -> tuple[dict[str, Any], list[html.Section]]:
    from fedmime.experiments import theory, theory_figures

    told = order.progress
    counted = None if told is None else lambda done, total: told("theory", done, total)
    data = theory.run(order.scale, order.out, counted)
    return data, theory_figures.sections(data)
