"""Sphinx settings: Markdown pages, one theme, the API read from docstrings."""

import re
from pathlib import Path

project = "fedmime"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax"]
myst_enable_extensions = ["dollarmath"]
html_theme = "furo"
exclude_patterns = ["_build"]
autodoc_member_order = "bysource"
default_role = "code"


def _math(app, what, name, obj, options, lines) -> None:
    """Docstrings write formulas between dollars, as the pages do."""
    text = re.sub(r"\$([^$]+)\$", lambda m: f":math:`{' '.join(m.group(1).split())}`", "\n".join(lines))
    lines[:] = text.split("\n")


def _sheet(app) -> None:
    """Draw the sheet of handwriting that the data page shows."""
    from PIL import Image

    from fedmime.data.handwriting import sheet

    target = Path(__file__).parent / "_generated" / "handwriting.png"
    target.parent.mkdir(exist_ok=True)
    Image.fromarray(sheet(writers=20, seed=0)).save(target)


def setup(app) -> None:
    app.connect("builder-inited", _sheet)
    app.connect("autodoc-process-docstring", _math)
