"""Sphinx settings: Markdown pages, one theme, the API read from docstrings."""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # reference.py

project = "fedmime"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax"]
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "fedmime"
html_show_copyright = False  # the licence says whose it is
html_static_path = ["_static"]
html_css_files = ["fedmime.css"]
exclude_patterns = ["_build", "_generated"]
autodoc_member_order = "bysource"
napoleon_use_ivar = True  # attributes of a docstring are not described twice
default_role = "code"


def _math(app, what, name, obj, options, lines) -> None:
    """Docstrings write formulas between dollars, as the pages do; named tuples have nothing to say about a field."""
    if lines and lines[0].startswith("Alias for field number"):
        lines.clear()
    text = re.sub(r"\$([^$]+)\$", lambda m: f":math:`{' '.join(m.group(1).split())}`", "\n".join(lines))
    lines[:] = text.split("\n")


def _sheet(app) -> None:
    """Draw the sheet of handwriting that the data page shows."""
    from PIL import Image

    from fedmime.data.handwriting import sheet

    target = Path(__file__).parent / "_generated" / "handwriting.png"
    target.parent.mkdir(exist_ok=True)
    Image.fromarray(sheet(writers=20, seed=0)).save(target)


def _commands(app) -> None:
    """Write what every verb says of itself."""
    import contextlib
    import io
    import os

    from fedmime.cli.main import VERBS, main

    os.environ["COLUMNS"] = "100"
    parts = []
    for name, verb in VERBS.items():
        text = io.StringIO()
        with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
            main([name, "--help"])
        plain = re.sub(r"\x1b\[[0-9;]*m", "", text.getvalue())
        parts.append(f"## fedmime {name}\n\n{verb.help}\n\n```text\n{plain.rstrip()}\n```\n")
    target = Path(__file__).parent / "_generated" / "commands.md"
    target.parent.mkdir(exist_ok=True)
    target.write_text("\n".join(parts))


def _api(app) -> None:
    """Write the reference of every public name."""
    from reference import page

    target = Path(__file__).parent / "_generated" / "api.rst"
    target.parent.mkdir(exist_ok=True)
    target.write_text(page())


def setup(app) -> None:
    app.connect("builder-inited", _api)
    app.connect("builder-inited", _commands)
    app.connect("builder-inited", _sheet)
    app.connect("autodoc-process-docstring", _math)
