"""Nodes that a function makes: how it is found, what it is given, and what is said where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.flower.machine import ROOT, program
from fedmime.deploy.flower import builders
from fedmime.errors import ConfigError

_FILE = """
import dataclasses

@dataclasses.dataclass
class Told:
    config: dict

    def answer(self, request):
        return repr(sorted(self.config.items())).encode()

def client(config):
    return Told(config)

def nothing(config):
    return 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file with the name of a module that is imported already."""
    found = tmp_path / "json.py"
    found.write_text(_FILE)
    return found


def test_a_function_of_a_file_or_of_a_module(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = builders.of_function(f"{file}:client", {"name": "a"})
    assert node.answer(b"") == b"[('name', 'a')]"
    file.rename(file.with_name("ours_in_torch.py"))
    monkeypatch.syspath_prepend(file.parent)
    assert builders.of_function("ours_in_torch:client", {"name": "b"}).answer(b"") == b"[('name', 'b')]"


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("{folder}/other.py:client", "there is no file '.*other.py'"),
        ("nowhere.ours:client", "there is no module 'nowhere.ours'"),
        ("{folder}/json.py:node", "json.py has no 'node'"),
        ("{folder}/json.py:nothing", "json.py:nothing must return a client, such as fm.deploy.torch_client makes"),
    ],
    ids=["no file", "no module", "no function", "no client"],
)
def test_what_is_no_client(function: str, words: str, file: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        builders.of_function(function.format(folder=file.parent), {})


def test_a_module_that_is_missing_in_the_users_own_is_not_hidden(tmp_path: Path) -> None:
    (tmp_path / "ours.py").write_text("import a_module_that_is_missing")
    with pytest.raises(ConfigError, match=r"No module named 'a_module_that_is_missing' \(ours.py, line 1\)"):
        builders.of_function(f"{tmp_path / 'ours.py'}:client", {})


_WITHOUT_JAX = """
import sys

ABSENT = ("jax", "jaxlib", "optax", "orbax", "sklearn", "h5py", "msgpack", "jinja2", "safetensors", "tensorboardX")

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ABSENT:
            raise ImportError(f"{name} is not installed")

sys.meta_path.insert(0, Absent())
from fedmime.cli.main import main
from fedmime.deploy.flower import operate

operate.node = lambda plan, patience, flower: print(plan.order.build().answer(b"").decode())
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("written", ["json.py:client", "json_:client"], ids=["file", "module"])
def test_the_command_line_builds_it_without_jax(written: str, file: Path) -> None:
    """Nor does it need other packages than the documentation names. Paths are those of the working directory."""
    pytest.importorskip("flwr")
    (file.parent / "json_.py").write_text(_FILE)
    for name in ("ca.crt", "hospital-a"):
        (file.parent / name).touch()
    words = ["deploy", "client", "--server", "127.0.0.1:1", "--key", "hospital-a", "--data", "my.npz"]
    told = {"cwd": file.parent, "capture_output": True, "text": True, "timeout": 60, "check": False}
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-P", "-c", _WITHOUT_JAX, *words, "--torch", written], env=environment, **told
    )
    assert done.returncode == 0, done.stderr
    here = file.parent.absolute()
    config = {"data": str(here / "my.npz"), "name": "hospital-a", "state": str(here / "hospital-a.kept")}
    assert done.stdout.strip() == repr(sorted(config.items()))


def test_a_wrong_option_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    for name in ("ca.crt", "a"):
        (tmp_path / name).touch()
    given = ["--server", "127.0.0.1:1", "--key", tmp_path / "a", "--authority", tmp_path / "ca.crt"]
    done = program(["deploy", "client", *given, "--torch", "client"], 60, tmp_path)
    assert done.returncode == 2
    assert done.stderr == "fedmime: torch: it must be FILE.py:FUNCTION or MODULE:FUNCTION, got 'client'\n"
