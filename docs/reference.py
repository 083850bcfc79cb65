"""Writes the API reference: one directive of autodoc for every public name of the package."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

INTERFACES = (  # of those who write a back end, or read what a gate or an accountant says
    "fedmime.engine.backends.backend.Backend",
    "fedmime.engine.backends.backend.Work",
    "fedmime.engine.backends.backend.Answer",
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
        module = getattr(fedmime, name)
        parts += [_heading(module.__name__), f".. automodule:: {module.__name__}\n   :no-members:\n"]
        for place, value in _members(module):
            again = any(value is one for one in before)
            parts.append(_directive(place, value) + ("   :no-index:\n" if again else ""))
    parts += [_heading("Interfaces"), *(_directive(place, _found(place)) for place in INTERFACES)]
    parts += [f".. automodule:: {name}\n   :members:\n" for name in BESIDE]
    return "\n".join(parts)


def _members(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """The public names of a module, with where they are found, and their values."""
    own = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]
    for name in own:
        yield f"{module.__name__}.{name}", getattr(module, name)


def _directive(place: str, value: Any) -> str:
    """What tells autodoc to document a name."""
    if inspect.ismodule(value):
        return f".. automodule:: {value.__name__}\n   :members:\n"
    if isinstance(value, type) and issubclass(value, BaseException):
        return f".. autoexception:: {place}\n"
    if isinstance(value, type):
        return f".. autoclass:: {place}\n   :members:\n"
    return f".. autofunction:: {place}\n" if callable(value) else f".. autodata:: {place}\n"


def _found(place: str) -> Any:
    module, _, name = place.rpartition(".")
    return getattr(importlib.import_module(module), name)


def _heading(title: str) -> str:
    return f"{title}\n{'-' * len(title)}\n"
