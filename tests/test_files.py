"""Files and directories that appear whole or not at all, and leave nothing behind for long."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedmime.files import whole_directory, whole_file

_KILLED = """
import os, signal, sys
from pathlib import Path
from fedmime.files import whole_directory, whole_file
write = whole_directory if sys.argv[1] == "directory" else whole_file
with write(Path(sys.argv[2])) as temporary:
    (temporary / "part" if sys.argv[1] == "directory" else temporary).write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("kind", ["directory", "file"])
def test_what_a_killed_process_left_is_removed_by_the_next(kind: str, tmp_path: Path) -> None:
    path, write = tmp_path / "a[1].store", whole_directory if kind == "directory" else whole_file
    done = subprocess.run([sys.executable, "-c", _KILLED, kind, path], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert [name.startswith(".a[1].store.") for name in os.listdir(tmp_path)] == [True]
    with write(path) as temporary:
        assert os.listdir(tmp_path) == [temporary.name]
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("write", [whole_directory, whole_file])
def test_what_is_being_written_is_left_alone(write, tmp_path: Path) -> None:
    with write(tmp_path / "a") as first:
        with contextlib.suppress(RuntimeError), write(tmp_path / "a") as second:
            assert first.exists()
            assert second != first
            raise RuntimeError
        assert os.listdir(tmp_path) == [first.name]
    assert os.listdir(tmp_path) == ["a"]


def test_a_link_in_place_of_left_overs_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / ".a.x.tmp").symlink_to(tmp_path / "precious")
    with whole_file(tmp_path / "a") as temporary:
        temporary.write_text("a")
    assert (tmp_path / "precious").is_dir()
