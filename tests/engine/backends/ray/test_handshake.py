"""What workers and the driver compare: whatever would change numbers must show."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import fedmime as fm
from engine.setting import PROBLEM, population
from fedmime.engine.backends.ray.handshake import Facts, Recipe, Subject, modules_of
from fedmime.engine.sampling import Schedule
from fedmime.kernels import build

CLIENTS = population((3, 4))
RECIPE = Recipe(fm.algorithms.fedavg(0.1), (), Schedule(2, 4, 1, None, 0, "examples"))
MADE = """
import fedmime as fm

def problem(classes=3):
    return fm.models.logistic((2, 2), classes)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of an importable module of a user's own."""
    file = tmp_path / "models_of_mine.py"
    file.write_text(MADE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "models_of_mine", raising=False)
    return file


def _subject(problem: Any = PROBLEM, clients: Any = CLIENTS, recipe: Recipe = RECIPE) -> Subject:
    return Subject.of(problem, clients, recipe, modules_of(problem, clients, recipe))


def test_the_same_run_has_no_differences() -> None:
    assert not list(_subject().differences(_subject()))
    assert Facts.here() == Facts.here()


def test_what_changes_the_last_bits_is_a_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = Facts.here()
    assert ours.jaxlib == version("jaxlib")
    monkeypatch.setattr(build, "available", lambda: not ours.kernels)
    assert Facts.here() == ours._replace(kernels=not ours.kernels)


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        (RECIPE._replace(algorithm=fm.algorithms.fedavg(0.2)), "configuration"),
        (RECIPE._replace(algorithm=fm.algorithms.scaffold(0.1)), "configuration"),
        (RECIPE._replace(schedule=Schedule(2, 5, 1, None, 0, "examples")), "configuration"),
    ],
)
def test_another_recipe_shows(changed: Recipe, name: str) -> None:
    (told,) = _subject(recipe=changed).differences(_subject())
    assert told.startswith(name)


def test_other_data_shows(tmp_path: Path) -> None:
    for name, sizes in (("one", (3, 4)), ("other", (3, 5))):
        population(sizes).save(tmp_path / name)
    one, other = (_subject(clients=fm.data.from_store(tmp_path / name)) for name in ("one", "other"))
    (told,) = one.differences(other)
    assert told.startswith("data ")
    assert not list(_subject().differences(_subject(clients=population((3, 5)))))  # it came from the driver itself


def test_another_model_of_the_same_name_shows(module: Path) -> None:
    small, large = (fm.backends.by_name("models_of_mine:problem", classes) for classes in (3, 4))
    (told,) = _subject(small).differences(_subject(large))
    assert told.startswith("problem 'logistic ")


def test_another_file_of_a_users_module_shows(module: Path) -> None:
    problem = fm.backends.by_name("models_of_mine:problem")
    before = _subject(problem)
    assert list(before.modules) == ["models_of_mine"]
    module.write_text(MADE + "# changed\n")
    assert list(_subject(problem).differences(before)) == [f"another version of {str(module)!r}"]
    not_imported = _subject(problem)._replace(modules={})  # it was sent as it is
    assert not list(not_imported.differences(before))


def test_modules_of_the_package_are_compared_as_a_whole() -> None:
    assert modules_of(fm.models.logistic(), None, RECIPE) == set()
    assert modules_of(PROBLEM, None, RECIPE) == {"engine.setting"}
