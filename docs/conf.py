"""Sphinx settings: Markdown pages, one theme, the API read from docstrings."""

import re

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


def setup(app) -> None:
    app.connect("autodoc-process-docstring", _math)
