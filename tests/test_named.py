"""The user's own code by name: found, read once, and blamed in one line for what it raises."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest

from fedmime import named
from fedmime.errors import ConfigError, DataError

_FILE = """
import helpers_beside_it

answer = helpers_beside_it.ANSWER


def fails():
    raise KeyError("no such field")
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with the name of a module of Python's, and one beside it."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "helpers_beside_it.py").write_text("ANSWER = [42]\n")
    found = tmp_path / "json.py"
    found.write_text(_FILE)
    return found


def test_a_file_is_read_once_and_takes_no_other_modules_place(file: Path) -> None:
    import json

    name = f"{file}:answer"
    first = named.load("task", name)
    assert first == [42]
    file.write_text("answer = 0")
    assert named.load("task", name) is first
    assert sys.modules["json"] is json
    assert named.digest(name) == f"json.py {hashlib.sha256(_FILE.encode()).hexdigest()}"  # of what was loaded
    assert sys.modules[named.module_of(name)] in named.from_files()


def test_a_module_is_imported(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(file.parent)
    assert named.load("task", "helpers_beside_it:ANSWER") == [42]
    content = file.with_name("helpers_beside_it.py").read_bytes()
    assert named.digest("helpers_beside_it:ANSWER") == f"helpers_beside_it.py {hashlib.sha256(content).hexdigest()}"


def test_paths_become_absolute_and_names_short_and_safe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert named.absolute("a/own.py:mine") == f"{tmp_path}/a/own.py:mine"
    assert named.absolute("own.part:mine") == "own.part:mine"
    assert named.absolute("emnist-cnn") == "emnist-cnn"
    assert named.short(f"{tmp_path}/a/own.py:mine") == "own.py:mine"
    assert named.safe("../a/own.py:mine") == "a-own.py-mine"
    assert named.safe("::") == "own"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("{folder}/jsn.py:answer", "task: there is no file '.*jsn.py'; did you mean 'json.py'?"),
        ("{folder}/none/x.py:answer", "task: there is no file '.*none/x.py'$"),
        ("{folder}/json.py:answr", "task: .*json.py has no 'answr'; did you mean 'answer'?"),
        ("{folder}/json.py:", "must be written module:name or path/to/file.py:name"),
        ("nowhere.ours:client", "task: there is no module 'nowhere.ours'$"),
        ("emnist_cn:x", "there is no module 'emnist_cn'; did you mean 'emnist_cnn'?"),
        ("emnist-cn:x", "'emnist-cn' is no module; write module:name"),
        ("fedmime.errors:Confg", "fedmime.errors .*errors.py. has no 'Confg'"),
    ],
)
def test_what_is_missing_is_said_in_one_line(name: str, words: str, file: Path) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        named.load("task", name.format(folder=file.parent), near=["emnist_cnn"])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("\nx = (\n", r"SyntaxError: '\(' was never closed \(own.py, line 2\)"),
        ("\n\n1 / 0", r"ZeroDivisionError: division by zero \(own.py, line 3\)"),
        ("import a_module_that_is_missing", r"ModuleNotFoundError: .*a_module_that_is_missing' \(own.py, line 1\)"),
        ("raise ValueError('a\\nb')", r"ValueError: a b \(own.py, line 1\)"),
        ("import sys\nsys.exit(3)", r"SystemExit: 3 \(own.py, line 2\)"),
    ],
)
def test_what_a_file_raises_is_said_with_its_line(content: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(content)
    for _ in range(2):  # a file that failed is not taken for loaded
        with pytest.raises(ConfigError, match=words):
            named.load("task", f"{file}:x")


def test_errors_of_this_library_keep_their_kind(file: Path) -> None:
    with pytest.raises(DataError, match=r"^lost$"), named.blaming("task", "own.py:x"):
        raise DataError("lost")
    fails = named.load("task", f"{file}:fails")
    words = r"task: 'own.py:x': KeyError: 'no such field' \(json.py, line 8\)"
    with pytest.raises(ConfigError, match=words), named.blaming("task", "own.py:x"):
        fails()


def test_code_of_others_is_not_blamed() -> None:
    with pytest.raises(ValueError, match="invalid literal") as caught:
        int("x")
    caught.value.__traceback__ = None
    assert named.blamed(caught.value) is None
