"""Kernels on disk: only what the caller wrote, whole, is ever run."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from fedmime.kernels import build, cache

NAME = "kernels-of-a-test.so"
OURS = b"\x7fELF built by us"
STRANGER = 12345


class Builds:
    """Builds the library, and counts how often."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> bytes:
        self.count += 1
        return OURS


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the kernels, with a library in it."""
    monkeypatch.setenv("FEDMIME_CACHE", str(tmp_path / "cache"))
    assert cache.library(NAME, Builds()) == (OURS, str(tmp_path / "cache" / "native" / NAME))
    return tmp_path / "cache" / "native"


def test_a_library_is_built_once_and_left_whole(folder: Path) -> None:
    build = Builds()
    assert cache.library(NAME, build)[0] == OURS
    assert build.count == 0
    assert [path.name for path in folder.parent.rglob("*") if path.is_file()] == [NAME]
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "content", [b"", b"\x7fELF planted", OURS, OURS + b"0" * 32], ids=["empty", "planted", "cut", "signed"]
)
def test_what_does_not_match_its_digest_is_built_again(content: bytes, folder: Path) -> None:
    (folder / NAME).write_bytes(content)
    for builds in (1, 0):  # and is whole from then on
        build = Builds()
        assert cache.library(NAME, build)[0] == OURS
        assert build.count == builds


def _a_strangers_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)


def _a_folder_that_others_write_to(folder: Path, _: pytest.MonkeyPatch) -> None:
    folder.chmod(0o777)


def _a_folder_that_the_group_writes_to(folder: Path, _: pytest.MonkeyPatch) -> None:
    folder.chmod(0o770)


def _a_link_to_a_folder(folder: Path, _: pytest.MonkeyPatch) -> None:
    folder.rename(folder.parent / "elsewhere")
    folder.symlink_to(folder.parent / "elsewhere")


def _a_folder_that_others_can_replace(folder: Path, _: pytest.MonkeyPatch) -> None:
    folder.parent.chmod(0o777)


def _a_file_in_its_place(folder: Path, _: pytest.MonkeyPatch) -> None:
    shutil.rmtree(folder)
    folder.write_bytes(b"")


def _no_home(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FEDMIME_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: STRANGER)


@pytest.mark.parametrize(
    "harm",
    [
        _a_strangers_folder,
        _a_folder_that_others_write_to,
        _a_folder_that_the_group_writes_to,
        _a_link_to_a_folder,
        _a_folder_that_others_can_replace,
        _a_file_in_its_place,
        _no_home,
    ],
)
def test_without_a_folder_of_its_own_nothing_is_read_or_kept(harm, folder: Path, monkeypatch, caplog) -> None:
    planted = (folder / NAME).read_bytes()
    harm(folder, monkeypatch)
    build = Builds()
    assert cache.library(NAME, build) == (OURS, "built for this process alone")
    assert build.count == 1
    assert caplog.text.count("compiled kernels are not kept") == 1
    if (folder / NAME).exists():
        assert (folder / NAME).read_bytes() == planted


@pytest.mark.parametrize("mode", [0o622, 0o666, 0o664])
def test_a_file_that_others_write_to_is_built_again(mode: int, folder: Path) -> None:
    (folder / NAME).chmod(mode)
    build = Builds()
    assert cache.library(NAME, build)[0] == OURS
    assert build.count == 1
    assert (folder / NAME).stat().st_mode & 0o777 == 0o644


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")
def test_a_strangers_file_is_built_again(folder: Path) -> None:
    os.chown(folder / NAME, STRANGER, STRANGER)
    build = Builds()
    assert cache.library(NAME, build)[0] == OURS
    assert build.count == 1


def test_a_linked_file_is_built_again(folder: Path) -> None:
    (folder / NAME).rename(folder / "elsewhere")
    (folder / NAME).symlink_to(folder / "elsewhere")
    build = Builds()
    assert cache.library(NAME, build)[0] == OURS
    assert build.count == 1
    assert not (folder / NAME).is_symlink()


def test_a_full_disk_keeps_nothing(folder: Path, monkeypatch, caplog) -> None:
    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert cache.library("another.so", Builds())[0] == OURS
    assert "compiled kernels are not kept: No space left" in caplog.text


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
@pytest.mark.parametrize("nameless", [True, False])
def test_the_bytes_that_were_checked_are_loaded(nameless: bool, tmp_path: Path, monkeypatch) -> None:
    """Whatever becomes of the file, and also where the system has no files without a name."""
    source, made = tmp_path / "seven.c", tmp_path / "seven.so"
    source.write_text("int seven(void) { return 7; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(made)], check=True)
    if not nameless:
        monkeypatch.delattr(os, "memfd_create")
    library = cache.load(made.read_bytes())
    made.write_bytes(b"")
    assert library.seven() == 7


@pytest.mark.skipif(build._compiler() is None, reason="no C compiler here")
def test_a_planted_library_is_not_loaded(folder: Path, monkeypatch) -> None:
    """The kernels' own way: under their name lies something that nobody built."""
    given = []

    def load(content: bytes) -> None:
        given.append(content)
        raise OSError("seen enough")

    monkeypatch.setattr(build, "_built", lambda *_: OURS)
    monkeypatch.setattr(cache, "load", load)
    name = f"kernels-linear-{build._digest(build._compiler() or '', 'linear')}.so"
    (folder / name).write_bytes(b"\x7fELF planted")
    assert "seen enough" in build._load("linear").told
    assert given == [OURS]
