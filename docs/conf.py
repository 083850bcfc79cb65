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
html_show_copyright = False
exclude_patterns = ["_build", "_generated"]
autodoc_member_order = "bysource"
napoleon_use_ivar = True  # attributes of a docstring are not described twice
default_role = "code"


def _docstring(app, what, name, obj, options, lines) -> None:
    """Formulas stand between dollars, as on the pages; named tuples have nothing to say about a field."""
    if lines and lines[0].startswith("Alias for field number"):
        lines.clear()
    if lines and what in ("attribute", "data", "property"):  # napoleon takes what is before a colon for a type
        before = [line.removeprefix(":type: ") for line in lines if line.startswith(":type: ")]
        lines[:] = [": ".join([*before, lines[0]]), *(line for line in lines[1:] if not line.startswith(":type: "))]
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


def _notebook(app) -> None:
    """Execute the notebook, and write its cells with what they showed."""
    import nbformat
    from nbclient import NotebookClient

    here = Path(__file__).parent
    (here / "_generated").mkdir(exist_ok=True)
    notebook = nbformat.read(here / "notebook.ipynb", as_version=4)
    NotebookClient(notebook, timeout=300, kernel_name="python3", coalesce_streams=True).execute()
    parts = []
    for cell in notebook.cells:
        parts.append(cell.source if cell.cell_type == "markdown" else f"```python\n{cell.source}\n```")
        parts += [_shown(output) for output in cell.get("outputs", ())]
    (here / "_generated" / "notebook.md").write_text("\n\n".join(parts) + "\n")


def _shown(output) -> str:
    """What a cell showed: its card, or text, of a line that was rewritten its last version."""
    if "text/html" in output.get("data", {}):
        return f'````{{raw}} html\n<div class="output">{output.data["text/html"]}</div>\n````'
    text = output.text if output.output_type == "stream" else output.data["text/plain"]
    lines = "\n".join(line.rpartition("\r")[2] for line in text.rstrip().split("\n"))
    return f"```text\n{lines}\n```"


def _api(app) -> None:
    """Write the reference of every public name."""
    from reference import page

    target = Path(__file__).parent / "_generated" / "api.rst"
    target.parent.mkdir(exist_ok=True)
    target.write_text(page())


def setup(app) -> None:
    app.connect("builder-inited", _api)
    app.connect("builder-inited", _commands)
    app.connect("builder-inited", _notebook)
    app.connect("builder-inited", _sheet)
    app.connect("autodoc-process-docstring", _docstring)
