"""The wheel and the source distribution hold what a user needs, and install where nothing else is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import time
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NEEDED = (
    "__init__.pyi",
    "py.typed",
    "kernels/linear.c",
    "kernels/vectors.h",
    "report/report.css",
    "report/report.html",
)
MOST_SECONDS = 60  # to install it from cached packages and run the example of the README


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the wheel and the source distribution of this tree."""
    target = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", target], cwd=ROOT, check=True, capture_output=True
    )
    return target


def _sources() -> Iterator[str]:
    """The files of the package, without what Python leaves beside them."""
    for path in (ROOT / "src" / "fedmime").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            yield f"fedmime/{path.relative_to(ROOT / 'src' / 'fedmime')}"


def _members(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as file:
        return {name for name in file.namelist() if ".dist-info/" not in name}


def test_the_wheel_is_the_package(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    found = _members(wheel)
    assert found == set(_sources())
    assert {f"fedmime/{name}" for name in NEEDED} <= found
    with zipfile.ZipFile(wheel) as file:
        (name,) = (name for name in file.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = file.read(name).decode()
    assert set(re.findall(r"^Provides-Extra: (.*)$", metadata, re.MULTILINE)) == set(PROJECT["optional-dependencies"])


def test_the_wheel_of_the_source_distribution_is_the_same(built: Path, tmp_path: Path) -> None:
    (archive,), (wheel,) = built.glob("*.tar.gz"), built.glob("*.whl")
    with tarfile.open(archive) as file:
        file.extractall(tmp_path, filter="data")
    (tree,) = tmp_path.iterdir()
    for name in ("tests/conftest.py", "docs/index.md", "CITATION.cff", "constraints.txt", "Makefile"):
        assert (tree / name).is_file(), name
    again = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path]
    subprocess.run(again, cwd=tree, check=True, capture_output=True)
    (other,) = tmp_path.glob("*.whl")
    assert _members(other) == _members(wheel)


def test_the_citation_names_this_version_and_the_paper() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], citation["license"]) == (PROJECT["version"], PROJECT["license"])
    (paper,) = citation["references"]
    assert paper["title"].startswith("Mime: Mimicking Centralized")
    assert paper["url"] in (ROOT / "README.md").read_text()


def test_every_extra_is_explained() -> None:
    page = (ROOT / "docs" / "install.md").read_text()
    for name in PROJECT["optional-dependencies"]:
        assert f"| `{name}` |" in page, name


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["whl", "tar.gz"])
def test_it_installs_in_an_empty_environment_and_runs_the_readme(built: Path, tmp_path: Path, fact, kind: str) -> None:
    """Seconds count from the empty environment; packages come from pip's cache or the index."""
    (archive,) = built.glob(f"*.{kind}")
    block = re.search(
        r"^## Fifteen lines\n\n```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE
    )
    assert block
    example = "import fedmime; assert 'site-packages' in fedmime.__file__\n" + block[1]
    outside = {
        name: value for name, value in os.environ.items() if name != "PYTHONPATH" and not name.startswith("JAX_")
    }
    outside |= {"HOME": str(tmp_path), "PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
    if cache := _pip_cache():
        outside["PIP_CACHE_DIR"] = cache
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "env"], check=True)
    python, before = tmp_path / "env" / "bin" / "python", _bytes(tmp_path / "env")
    began = time.monotonic()
    subprocess.run([python, "-m", "pip", "install", "--quiet", archive], env=outside, check=True)
    done = subprocess.run(
        [python, "-c", example], cwd=tmp_path, env=outside, check=True, capture_output=True, text=True
    )
    seconds = time.monotonic() - began
    listed = subprocess.run(
        [python, "-m", "pip", "list", "--format", "freeze"], check=True, capture_output=True, text=True
    )
    packages = [line for line in listed.stdout.splitlines() if not line.startswith(("pip==", "setuptools=="))]
    assert "round 30: test accuracy" in done.stdout
    fact(f"seconds from an empty environment to the end of the README's example, by way of the {kind}", seconds)
    fact("packages of the plain install", len(packages))
    fact("megabytes of the plain install", (_bytes(tmp_path / "env") - before) / 1e6)
    assert seconds < MOST_SECONDS


def _pip_cache() -> str:
    return subprocess.run(
        [sys.executable, "-m", "pip", "cache", "dir"], check=False, capture_output=True, text=True
    ).stdout.strip()


def _bytes(directory: Path) -> int:
    return sum(path.lstat().st_size for path in directory.rglob("*") if path.is_file())
