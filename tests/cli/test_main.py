"""The command line as a program: help at once, one line and an exit code for what goes wrong."""

import subprocess
import sys
from pathlib import Path

import pytest

from fedmime.cli.main import main


def test_help_names_the_verbs_and_does_not_start_jax() -> None:
    code = "import sys; from fedmime.cli.main import main; main(['--help']); assert 'jax' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert "data" in done.stdout


def test_help_of_every_verb_does_not_start_jax() -> None:
    """What keeps help under a second: none of the heavy libraries is loaded for it."""
    code = """
import contextlib, io, sys
from fedmime.cli.main import VERBS, main
for verb in VERBS:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        main([verb, "--help"])
    assert f"usage: fedmime {verb}" in said.getvalue(), verb
loaded = {"jax", "numpy", "scipy", "sklearn", "orbax", "matplotlib"} & set(sys.modules)
assert not loaded, loaded
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_arguments_of_the_library_are_spelled_as_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--task", "emnist-logistic", "--data-dir", str(tmp_path), "--out", str(tmp_path / "run"), "--quiet"]
    assert main(["train", *words]) == 3
    assert capsys.readouterr().err.endswith("run `fedmime data fetch emnist` or pass --data-dir\n")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("fedmime 0.")


def test_unknown_verb_offers_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dta"]) == 2
    assert capsys.readouterr().err == "fedmime: unknown verb 'dta'; did you mean 'data'?\n"


def test_bad_data_is_one_line_and_exit_code_three(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "fed_emnist_train.h5"
    path.write_bytes(b"not HDF5")
    assert main(["data", "verify", str(path), "--quiet"]) == 3
    printed = capsys.readouterr()
    assert len((printed.err or printed.out).strip().splitlines()) == 1


def test_wrong_option_exits_with_two() -> None:
    with pytest.raises(SystemExit) as caught:
        main(["data", "verify", "--nonsense"])
    assert caught.value.code == 2
