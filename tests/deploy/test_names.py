"""The public names of `fm.deploy` are what they say, however often and in whichever order they are read."""

import pkgutil
from types import ModuleType

import pytest

import fedmime as fm


@pytest.mark.parametrize("name", fm.deploy.__all__)
def test_a_name_is_the_same_thing_the_second_time(name: str) -> None:
    """Importing a submodule gives its package an attribute of its name, which would hide a function of that name."""
    first, second = getattr(fm.deploy, name), getattr(fm.deploy, name)
    assert first is second
    modules = {module.name for module in pkgutil.iter_modules(fm.deploy.__path__)}
    assert isinstance(first, ModuleType) == (name in modules)
