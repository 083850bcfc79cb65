"""Writes the API reference: one directive of autodoc for every public name of the package."""

from __future__ import annotations

import importlib
import inspect
import typing
from collections.abc import Iterator
from types import ModuleType
from typing import Any

FURTHER = (  # beside the modules of `fedmime`: what algorithms are written with, and what experiments are made of
    "fedmime.hyperparameters",
    "fedmime.vector",
    "fedmime.models.layers",
    "fedmime.experiments.setting",
    "fedmime.experiments.sweep",
    "fedmime.experiments.sweep_search",
    "fedmime.experiments.tune",
)
RANGES = ("BOUND", "CLOSED_UNIT", "NON_NEGATIVE", "POSITIVE", "Range", "SHARE", "UNIT")  # of fedmime.validation
INTERFACES = (  # of those who write a back end, or read what a gate, an accountant or an evaluation says
    "fedmime.engine.Spread",
    "fedmime.engine.backends.backend.Backend",
    "fedmime.engine.backends.backend.Work",
    "fedmime.engine.backends.backend.Answer",
    "fedmime.engine.backends.reference.ReferenceBackend",
    "fedmime.engine.intake.Intake",
)
BESIDE = ("fedmime.aggregation.gate", "fedmime.aggregation.accounting")


def page() -> str:
    """The reference as reStructuredText."""
    import fedmime

    modules = [name for name in fedmime.__all__ if inspect.ismodule(getattr(fedmime, name))]
    parts, top = [_heading("fedmime")], [name for name in fedmime.__all__ if name not in modules]
    parts += [_directive(f"fedmime.{name}", getattr(fedmime, name)) for name in top]
    before = [getattr(fedmime, name) for name in top]  # some of them are names of a module, too
    for name in modules:
        parts += _of_module(f"fedmime.{name}", getattr(fedmime, name), before)
    for name in FURTHER:
        parts += _of_module(name, importlib.import_module(name), before)
    validation = importlib.import_module("fedmime.validation")
    parts.append(_heading("fedmime.validation"))
    parts += [_directive(f"fedmime.validation.{name}", getattr(validation, name)) for name in RANGES]
    parts += [_heading("Interfaces"), *(_directive(place, _found(place)) for place in INTERFACES)]
    # `Gate` is documented once, where users reach it.
    parts += [f".. automodule:: {name}\n   :members:\n   :exclude-members: {', '.join(top)}\n" for name in BESIDE]
    return "\n".join(parts)


def _of_module(path: str, module: ModuleType, before: list[Any]) -> Iterator[str]:
    """What a module says of itself, and its public names under the path by which users reach it.

    Those that were documented `before` are not indexed again.
    """
    yield _heading(path)
    yield f".. automodule:: {module.__name__}\n   :no-members:\n"
    for name in module.__all__:
        value = getattr(module, name)
        again = any(value is one for one in before)
        yield _directive(f"{path}.{name}", value) + ("   :no-index:\n" if again else "")


def _directive(place: str, value: Any) -> str:
    """What tells autodoc to document a name."""
    if inspect.ismodule(value):
        return f".. automodule:: {value.__name__}\n   :members:\n"
    if isinstance(value, type) and issubclass(value, BaseException):
        return f".. autoexception:: {place}\n"
    if isinstance(value, type):
        return f".. autoclass:: {place}\n   :members:\n"
    if callable(value) and typing.get_origin(value) is None and value is not Any:
        return f".. autofunction:: {place}\n"
    return f".. autodata:: {place}\n" + ("   :no-value:\n" if isinstance(value, tuple) else "")


def _found(place: str) -> Any:
    module, _, name = place.rpartition(".")
    return getattr(importlib.import_module(module), name)


def _heading(title: str) -> str:
    return f"{title}\n{'-' * len(title)}\n"
