"""Every Python block and `$ fedmime` line of the README and the docs runs, in order; so do the examples."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import fedmime as fm
from fedmime.cli.main import main
from fedmime.report import html

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One namespace and one folder a page; what needs published files or long is in blocks of another kind.

    Reports have their figures in the tutorial, which is about them: elsewhere they would only be drawn again.
    """
    for figures in () if page.name == "tutorial.md" else ("standard", "diagnostics"):
        monkeypatch.setattr(html, figures, lambda *_: [])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDMIME_NO_COMPILATION_CACHE", "1")
    namespace: dict[str, object] = {}
    for block in BLOCK.finditer(page.read_text()):
        if block.group(1) == "console":
            for command in re.findall(r"^\$ fedmime (.*?)(?:  #.*)?$", block.group(2), re.MULTILINE):
                assert main(shlex.split(command)) == 0, command
            continue
        line = page.read_text()[: block.start(2)].count("\n")
        exec(compile("\n" * line + block.group(2), str(page), "exec"), namespace)


def test_the_command_of_the_readme_trains_the_model_of_its_fifteen_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDMIME_NO_COMPILATION_CACHE", "1")
    text = (ROOT / "README.md").read_text()
    lines = re.search(r"^## Fifteen lines\n\n```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    command = re.search(r"^\$ fedmime (train .*--out (\S+).*)$", text, re.MULTILINE)
    assert lines
    assert command
    namespace: dict[str, Any] = {}
    exec(lines[1], namespace)
    assert main(shlex.split(command[1])) == 0
    one, other = namespace["run"], fm.Run.load(command[2])
    assert jax.tree.structure(one.params) == jax.tree.structure(other.params)
    for a, b in zip(jax.tree.leaves(one.params), jax.tree.leaves(other.params), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(one.history["test_accuracy"], other.history["test_accuracy"])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_pages_are_built_without_a_warning(tmp_path: Path) -> None:
    """With the notebook executed in its page, and every public name in the reference."""
    pytest.importorskip("sphinx", reason="the extra fedmime[docs] is not installed")
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
    outside |= {"PYTHONPATH": str(ROOT / "src"), "JUPYTER_PLATFORM_DIRS": "1", "IPYTHONDIR": str(tmp_path / "ipython")}
    words = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", ROOT / "docs", tmp_path / "pages"]
    done = subprocess.run(words, env=outside, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "<svg" in (tmp_path / "pages" / "in_a_notebook.html").read_text()
    assert 'id="fedmime.vector.norm"' in (tmp_path / "pages" / "api.html").read_text()


def test_readme_names_its_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert "make demo" in text
    assert "make test" in text


def test_mime_is_a_hundred_times_closer_on_two_quadratics() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "two_quadratics.py"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    distances = dict(re.findall(r"^(FedAvg|Mime)'s distance .*: +(\S+)$", done.stdout, re.MULTILINE))
    assert float(distances["FedAvg"]) >= 100 * float(distances["Mime"])
    assert float(distances["FedAvg"]) > 0.1
