"""Errors are for whoever called: outside of the command line none speaks of its options."""

import ast
import re
from pathlib import Path

import pytest

import fedmime as fm

ROOT = Path(fm.__file__).parent
FILES = sorted(path for path in ROOT.rglob("*.py") if path.relative_to(ROOT).parts[0] != "cli")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_messages_do_not_speak_of_options(path: Path) -> None:
    tree = ast.parse(path.read_text())
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    texts = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and id(n) not in prose]
    assert not [text for text in texts if isinstance(text, str) and re.search(r"[\s`]\(?--[a-z]", text)]
