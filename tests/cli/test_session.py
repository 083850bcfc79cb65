"""What every verb that computes does first: programs are kept where only the caller can put some."""

import os
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from fedmime import compilation
from fedmime.cli import session


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, object]]:
    """What JAX is told, in a process where nobody has chosen a folder."""
    for name in ("FEDMIME_NO_COMPILATION_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(compilation, "configured", lambda: False)
    found: dict[str, object] = {}
    monkeypatch.setattr(jax.config, "update", found.__setitem__)
    compilation.keep_programs.cache_clear()
    yield found
    compilation.keep_programs.cache_clear()


def test_programs_are_kept_in_a_private_folder(told: dict[str, object], tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("FEDMIME_CACHE", str(tmp_path))
    session.start()
    assert told["jax_compilation_cache_dir"] == str(tmp_path / "programs")
    assert (tmp_path / "programs").stat().st_mode & 0o777 == 0o700


def test_programs_of_others_are_not_run(told: dict[str, object], tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("FEDMIME_CACHE", str(tmp_path))
    (tmp_path / "programs").mkdir()
    (tmp_path / "programs").chmod(0o777)
    session.start()
    assert not told
    said = capsys.readouterr().err
    assert said.startswith("fedmime: compiled programs are not kept: ")
    assert f"{str(tmp_path / 'programs')!r} is no directory that only you can write to" in said


def test_without_a_home_nothing_is_kept(told: dict[str, object], monkeypatch, capsys) -> None:
    for name in ("FEDMIME_CACHE", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    session.start()
    assert not told
    assert "has no home" in capsys.readouterr().err
