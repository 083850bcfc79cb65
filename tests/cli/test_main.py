"""The command line as a program: help at once, one line and an exit code for what goes wrong."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from faults.program import said
from fedmime.cli.main import main, script


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


def ended(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """The exit code of the console script, in this process."""
    monkeypatch.setattr(sys, "argv", ["fedmime", *words])
    with pytest.raises(SystemExit) as caught:
        script()
    return caught.value.code  # pyright: ignore[reportReturnType]


@pytest.fixture
def unread() -> Iterator[TextIO]:
    """A stream into a pipe whose reader has gone."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as stream:
        yield stream


@pytest.mark.parametrize("words", [("list", "tasks"), ("list", "tasks", "--json"), ("--help",), ("train", "--help")])
def test_nobody_reads(words: tuple[str, ...], unread: TextIO, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """A broken pipe ends the program as the signal would, without a word, whoever notices it first."""
    monkeypatch.setattr(sys, "stdout", unread)
    assert ended(monkeypatch, *words) == 141
    assert capsys.readouterr().err == ""


def test_nobody_reads_what_went_wrong(unread: TextIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", unread)
    assert ended(monkeypatch, "dta") == 141


def test_a_full_disk_behind_standard_output(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert ended(monkeypatch, "--help") == 74
    assert capsys.readouterr().err == "fedmime: standard output: [Errno 28] No space left on device\n"


@pytest.mark.parametrize(("words", "code"), [("list tasks", 0), ("train --help", 0), ("dta", 2), ("eval /nowhere", 5)])
def test_streams_that_are_closed(words: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    assert ended(monkeypatch, *words.split()) == code
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        stream.close()


def test_files_do_not_take_the_place_of_closed_streams(tmp_path: Path) -> None:
    """What libraries write to standard error must not land in a run's files."""
    code = (
        "import os, sys; from fedmime.cli import main\n"
        "main.main = lambda: (open(sys.argv[1], 'w').fileno() > 2) - 1\n"
        "main.script()"
    )
    closed = 'exec 0<&- 1>&- 2>&-; exec "$0" -c "$1" "$2"'
    done = subprocess.run(["sh", "-c", closed, sys.executable, code, tmp_path / "file"], check=False, timeout=60)
    assert done.returncode == 0


@pytest.mark.parametrize("verb", ["train", "sweep", "tune", "compare"])
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("algoritm: fedavg", "unknown field 'algoritm'; did you mean 'algorithm'?"),
        ("data-dri: x", "unknown field 'data-dri'; did you mean 'data_dir'?"),
        ("optimizer: {bta: 0.5}", "unknown field 'optimizer.bta'; did you mean 'beta'?"),
        ("participation.dropout: 0.1", "unknown field 'participation.dropout'; did you mean 'drop_out'?"),
        ("server: {optimiser: adam}", "unknown field 'server.optimiser'; did you mean 'optimizer'?"),
        ("client:\n  xyz: 1", "unknown field 'client.xyz'; accepted are beta, beta1, "),
    ],
)
def test_a_field_that_is_misspelt_in_a_file_is_named(verb: str, text: str, told: str, tmp_path: Path, capsys) -> None:
    (tmp_path / "asked.yaml").write_text(text)
    ended = said([verb, "--config", tmp_path / "asked.yaml"], capsys)
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert told in ended.err


@pytest.mark.parametrize(
    ("verb", "word", "text"),
    [
        ("sweep", "girds", "girds: [eta=1]"),
        ("tune", "central-round", "central-round: 3"),
        ("compare", "method", "method: [fedavg]"),
        ("train", "trak", "trak: [wandb]"),
    ],
)
def test_so_are_fields_of_one_verb_only(verb: str, word: str, text: str, tmp_path: Path, capsys) -> None:
    (tmp_path / "asked.yaml").write_text(text)
    ended = said([verb, "--config", tmp_path / "asked.yaml"], capsys)
    assert ended.code == 2
    assert f"unknown field {word!r}; did you mean '" in ended.err


@pytest.mark.parametrize("verb", ["sweep", "tune"])
def test_verbs_without_run_directories_have_no_trackers(verb: str, tmp_path: Path, capsys) -> None:
    told = f"fedmime: {verb}: unrecognized options --track, wandb; fedmime {verb} --help tells which there are\n"
    assert said([verb, "--track", "wandb"], capsys) == (2, "", told)
    (tmp_path / "asked.yaml").write_text("track: [wandb]")
    ended = said([verb, "--config", tmp_path / "asked.yaml"], capsys)
    assert ended.code == 2
    assert "unknown field 'track'" in ended.err


def test_an_option_that_is_misspelt_is_named_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    told = "fedmime: train: unrecognized options --cohorts, 3; did you mean --cohort?\n"
    assert said(["train", "--cohorts", "3"], capsys) == (2, "", told)
