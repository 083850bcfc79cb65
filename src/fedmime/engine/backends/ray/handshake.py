"""What a worker and the driver compare before they compute together: a worker that would give other numbers is refused.

`Facts` are those of a process, `Subject` those of a run. Each side finds out its own; the driver compares.
"""

from __future__ import annotations

import dataclasses
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from typing import Any, NamedTuple, Self

import jax

from fedmime import named
from fedmime.kernels import build
from fedmime.runs import identity
from fedmime.version import exact


class Facts(NamedTuple):
    """What must be the same in all processes."""

    fedmime: str
    jax: str
    jaxlib: str
    numpy: str
    python: str
    float64: bool
    platform: str
    kernels: bool
    """Whether the C kernels are used, without which the last bits are others."""

    @classmethod
    def here(cls) -> Self:
        """Those of this process."""
        wide = bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]
        python = ".".join(platform.python_version_tuple()[:2])
        jax_, jaxlib, numpy = map(version, ("jax", "jaxlib", "numpy"))
        return cls(exact(), jax_, jaxlib, numpy, python, wide, jax.default_backend(), build.available())


class Recipe(NamedTuple):
    """What clients do in a run, as it is in the first round."""

    algorithm: Any
    aggregator: Any
    schedule: Any


class Subject(NamedTuple):
    """What must be the same in all processes of a run."""

    problem: str
    """Its name and, if it was made by name, a digest of the types and shapes of the model."""
    data: str | None
    """The identity of the population; None for one that came from the driver itself, or has no name."""
    configuration: str
    """A digest of the recipe: algorithm, aggregation, and how mini-batches are drawn."""
    modules: Mapping[str, str]
    """The sha256 of modules outside of this package that the run's functions and classes come from, by name."""

    @classmethod
    def of(cls, problem: Any, population: Any, recipe: Recipe, modules: Iterable[str]) -> Self:
        """What this process has."""
        name = problem.name
        if getattr(problem, "origin", None) is not None:  # otherwise it came from the driver itself
            model = jax.eval_shape(problem.init, jax.eval_shape(jax.random.key, 0))
            name = f"{name} {identity.digest(identity.shapes(model))[:12]}"
        return cls(
            name,
            _data(population),
            identity.digest({"recipe": identity.describe(tuple(recipe))})[:12],
            {name: found for name in modules if (found := _file(name)) is not None},
        )

    def differences(self, ours: Subject) -> Iterator[str]:
        """In what a worker's subject differs from the driver's, each in words.

        A module that a worker has not imported is not compared: what comes from there was sent as it is.
        """
        for name in ("problem", "data", "configuration"):
            if getattr(self, name) != getattr(ours, name):
                yield f"{name} {getattr(self, name)!r}, the driver has {getattr(ours, name)!r}"
        for name, digest in ours.modules.items():
            if self.modules.get(name, digest) != digest:
                yield f"another version of {getattr(sys.modules.get(name), '__file__', None) or name!r}"


def modules_of(problem: Any, population: Any, recipe: Recipe) -> set[str]:
    """The modules outside of this package that a run's functions and classes come from."""
    origins = [getattr(each, "origin", None) for each in (problem, population)]
    found = {origin.module for origin in origins if origin is not None}
    arguments = [each for origin in origins if origin is not None for each in origin.arguments]
    found.update(named.module_of(each) for each in arguments if named.is_named(each))  # a task of the user's own
    found.update(_defined_in(problem), _defined_in(tuple(recipe)))
    return {name for name in found if name != "__main__" and name.partition(".")[0] != "fedmime"}


def _defined_in(value: Any) -> Iterator[str]:
    """The modules of a value's class and functions, fields of dataclasses and entries of tuples included."""
    if isinstance(value, tuple | list):
        for each in value:
            yield from _defined_in(each)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield type(value).__module__
        for field in dataclasses.fields(value):
            yield from _defined_in(getattr(value, field.name))
    elif callable(value):
        yield getattr(value, "__module__", None) or type(value).__module__


def _file(module: str) -> str | None:
    """The sha256 of an imported module's file, if it has one."""
    found = sys.modules.get(module)
    return None if found is None else named.sha256_of(found)


def _data(population: Any) -> str | None:
    if population is None or getattr(population, "resident", False) or not hasattr(population, "identity"):
        return None
    return population.identity()
