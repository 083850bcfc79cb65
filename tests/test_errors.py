"""Errors are for whoever called: outside of the command line none speaks of its options."""

import ast
import re
from pathlib import Path

import fedmime as fm

ROOT = Path(fm.__file__).parent
FILES = sorted(path for path in ROOT.rglob("*.py") if path.relative_to(ROOT).parts[0] != "cli")


def _of_options(path: Path) -> list[str]:
    """The strings of a file, but for docstrings, that name an option of the command line."""
    tree = ast.parse(path.read_text())
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    texts = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and id(n) not in prose]
    return [text for text in texts if isinstance(text, str) and re.search(r"[\s`]\(?--[a-z]", text)]


def test_messages_do_not_speak_of_options() -> None:
    assert len(FILES) > 100
    found = {str(path.relative_to(ROOT)): _of_options(path) for path in FILES}
    assert not {path: texts for path, texts in found.items() if texts}
