"""The choice of a back end, before it is started."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, Protocol

import numpy as np

from fedmime.engine.backends.backend import Backend, Problem
from fedmime.engine.intake import Intake
from fedmime.errors import ConfigError
from fedmime.validation import quote


class Expected(NamedTuple):
    """What a run will ask of a back end, so that it can reserve memory and keep data in place."""

    population: Any
    cohort_size: int
    rounds: int
    steps: np.ndarray
    """[clients with examples] local steps of each client."""


class Needs(NamedTuple):
    """What a run or a round needs of a back end beside the problem and the model."""

    intake: Intake | None = None
    """Looks at clients' data before it is used; by default a new one for the problem."""
    drift: bool = False
    """Whether to measure the mean of ‖y − x‖² over all local steps."""
    expected: Expected | None = None
    """What a run will ask for; None for a single round."""


NO_NEEDS = Needs()


class Specification(Protocol):
    """A back end that has not been started yet."""

    def start(self, problem: Problem, model: Any, needs: Needs = NO_NEEDS) -> Backend:
        """Start it for a problem and a model; of the model only the shapes matter."""
        ...


@dataclasses.dataclass(frozen=True)
class Local:
    """Compiled programs on the devices of this process; `layout` has the padded sizes of their tables."""

    devices: int | None = None
    layout: Any = None

    def start(self, problem: Problem, model: Any, needs: Needs = NO_NEEDS) -> Backend:
        """See `Specification.start`."""
        from fedmime.engine.backends.local.dispatch import LocalBackend

        intake = needs.intake or Intake(problem.check)
        return LocalBackend(problem, model, self.devices, intake, needs.drift, self.layout, needs.expected)


@dataclasses.dataclass(frozen=True)
class Reference:
    """Eager Python, one client after another."""

    def start(self, problem: Problem, model: Any, needs: Needs = NO_NEEDS) -> Backend:
        """See `Specification.start`."""
        from fedmime.engine.backends.reference import ReferenceBackend

        return ReferenceBackend(problem, model, needs.intake or Intake(problem.check), needs.drift)


Choice = str | Specification
NAMES = ("local", "reference")


def local(devices: int | None = None) -> Local:
    """The default: compiled programs on the local devices, all of them or the first `devices`."""
    return Local(devices)


def reference() -> Reference:
    """Clients run eagerly, one after another: slow, and the mode to debug in. Errors name the client and the stage."""
    return Reference()


def chosen(owner: str, backend: Choice, devices: int | None) -> Specification:
    """The back end that an argument names; `devices` is a short way to `local(devices)`."""
    if backend == "local":
        return Local(devices)
    if devices is not None:
        raise ConfigError(f"{owner}: devices is an option of backend='local', got devices={devices!r}")
    if backend == "reference":
        return Reference()
    if isinstance(backend, str) or not callable(getattr(backend, "start", None)):
        names = ", ".join(map(repr, NAMES))
        raise ConfigError(f"{owner}: backend must be one of {names} or come from fm.backends, got {quote(backend)}")
    return backend
