"""The choice of a back end, before it is started."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, Protocol

import numpy as np

from fedmime.engine.backends.backend import Backend, Problem
from fedmime.engine.intake import Intake
from fedmime.errors import ConfigError
from fedmime.validation import quote

NAMES = ("local", "reference")


class Expected(NamedTuple):
    """What a run will ask of a back end, so that it can reserve memory and keep data in place."""

    population: Any
    cohort_size: int
    rounds: int
    steps: np.ndarray
    """[clients with examples] local steps of each client."""


class Specification(Protocol):
    """A back end that has not been started yet."""

    def start(
        self,
        problem: Problem,
        model: Any,
        *,
        intake: Intake | None = None,
        drift: bool = False,
        expected: Expected | None = None,
    ) -> Backend:
        """Start it for a problem and a model; of the model only the shapes matter."""
        ...


@dataclasses.dataclass(frozen=True)
class Local:
    """Compiled programs on the devices of this process."""

    devices: int | None = None
    layout: Any = None

    def start(
        self,
        problem: Problem,
        model: Any,
        *,
        intake: Intake | None = None,
        drift: bool = False,
        expected: Expected | None = None,
    ) -> Backend:
        """See `Specification.start`."""
        from fedmime.engine.backends.local.dispatch import LocalBackend

        return LocalBackend(problem, model, self.devices, intake or Intake(problem.check), drift, self.layout, expected)


@dataclasses.dataclass(frozen=True)
class Reference:
    """Eager Python, one client after another."""

    def start(
        self,
        problem: Problem,
        model: Any,
        *,
        intake: Intake | None = None,
        drift: bool = False,
        expected: Expected | None = None,
    ) -> Backend:
        """See `Specification.start`."""
        from fedmime.engine.backends.reference import ReferenceBackend

        return ReferenceBackend(problem, model, intake or Intake(problem.check), drift)


Choice = str | Specification


def local(devices: int | None = None) -> Local:
    """The default: compiled programs on the local devices, all of them or the first `devices`."""
    return Local(devices)


def reference() -> Reference:
    """Clients run eagerly, one after another: slow, and the mode to debug in. Errors name the client and the stage."""
    return Reference()


def chosen(owner: str, backend: Choice, devices: int | None) -> Specification:
    """The back end that an argument names; `devices` is a short way to `local(devices)`."""
    if isinstance(backend, str) and backend in NAMES:
        return Local(devices) if backend == "local" else Reference()
    if isinstance(backend, str) or not callable(getattr(backend, "start", None)):
        names = ", ".join(map(repr, NAMES))
        raise ConfigError(f"{owner}: backend must be one of {names} or come from fm.backends, got {quote(backend)}")
    return backend
