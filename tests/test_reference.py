"""The API reference documents every public name, and every public name has something to say."""

import ast
import importlib.util
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

import fedmime as fm

ROOT = Path(__file__).parent.parent
STUB = ROOT / "src" / "fedmime" / "__init__.pyi"


def _public() -> list[str]:
    """The names that the stub imports, and those of the modules among them."""
    lines = [line for line in ast.parse(STUB.read_text()).body if isinstance(line, ast.ImportFrom)]
    names = [alias.name for line in lines for alias in line.names]
    inner = [f"{name}.{each}" for name in names if isinstance(getattr(fm, name), ModuleType) for each in _inside(name)]
    return names + inner


def _inside(module: str) -> list[str]:
    return list(getattr(getattr(fm, module), "__all__", ()))


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


def test_a_name_of_deployment_is_the_same_the_second_time() -> None:
    assert fm.deploy.torch_client is fm.deploy.torch_client
    assert callable(fm.deploy.torch_client)
