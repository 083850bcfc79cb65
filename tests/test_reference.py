"""The API reference documents every public name, and every public name has something to say."""

import ast
import importlib
import importlib.util
import inspect
import pydoc
import re
from pathlib import Path
from types import ModuleType

import pytest

import fedmime as fm

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
STUB = ROOT / "src" / "fedmime" / "__init__.pyi"


def _public() -> list[str]:
    """The names that the stub imports, and those of the modules among them."""
    lines = [line for line in ast.parse(STUB.read_text()).body if isinstance(line, ast.ImportFrom)]
    names = [alias.name for line in lines for alias in line.names]
    inner = [f"{name}.{each}" for name in names if isinstance(getattr(fm, name), ModuleType) for each in _inside(name)]
    return names + inner


def _inside(module: str) -> list[str]:
    return list(getattr(fm, module).__all__)


@pytest.fixture(scope="module")
def page() -> str:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "docs" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.page()


def _lacking(name: str, page: str) -> list[str]:
    """What a public name lacks."""
    value = fm
    for part in name.split("."):
        value = getattr(value, part)
    place = value.__name__ if inspect.ismodule(value) else f"fedmime.{name}"
    lacking = []
    if not re.search(rf"^\.\. auto\w+:: {re.escape(place)}$", page, re.MULTILINE):
        lacking.append(f"{name} is not in the reference")
    speaks = inspect.ismodule(value) or isinstance(value, type) or inspect.isfunction(value)
    if speaks and not (value.__doc__ or "").strip():
        lacking.append(f"{name} has no docstring")
    return lacking


def test_every_public_name_is_in_the_reference(page: str) -> None:
    assert len(_public()) > 100
    assert not [each for name in _public() for each in _lacking(name, page)]


def _documented(page: str) -> tuple[set[int], set[str]]:
    """What has a directive: names by their identity, and modules by their name."""
    found, modules = set(), set()
    for kind, place, options in re.findall(r"^\.\. auto(\w+):: (\S+)\n((?:   :.*\n)*)", page, re.MULTILINE):
        if kind == "module":
            modules.add(place)
            members = vars(importlib.import_module(place)).values() if ":members:" in options else ()
            found |= {id(value) for value in members if getattr(value, "__module__", "") == place}
        else:
            found.add(id(pydoc.locate(place)))
    return found, modules


def _told(text: str) -> set[str]:
    """The dotted names of the package that a page writes, in code and in prose, and those that its blocks import."""
    dotted = re.findall(r"(?<![\w./-])(?:fm|fedmime)((?:\.[A-Za-z_]\w*)+)\b(?![/-])", text)
    imported = re.findall(r"^from fedmime(\.\S+) import (.*)$", text, re.MULTILINE)
    names = [f"{module}.{name.strip()}" for module, names in imported for name in names.split(",")]
    modules = {module for module, _ in imported}
    return {f"fedmime{name}" for name in {*dotted, *names} - modules}


@pytest.mark.parametrize("path", [*PAGES, ROOT / "README.md"], ids=lambda path: path.name)
def test_what_the_pages_name_is_in_the_reference(path: Path, page: str) -> None:
    objects, modules = _documented(page)
    for name in _told(path.read_text()):
        value, place, known = fm, "fedmime", False
        for part in name.split(".")[1:]:
            place = f"{place}.{part}"
            if inspect.ismodule(value) and not hasattr(value, part):
                importlib.import_module(place)
            value = getattr(value, part)
            known = known or id(value) in objects or (inspect.ismodule(value) and value.__name__ in modules)
        assert known, name


def test_a_name_of_deployment_is_the_same_the_second_time() -> None:
    assert fm.deploy.torch_client is fm.deploy.torch_client
    assert callable(fm.deploy.torch_client)
