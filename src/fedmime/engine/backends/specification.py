"""The choice of a back end, before it is started."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from fedmime.engine.backends.backend import Backend, Problem
from fedmime.engine.intake import Intake
from fedmime.errors import ConfigError
from fedmime.validation import POSITIVE, count, quote, real

_HOST_AND_PORT = re.compile(r"[^\s/]+:[0-9]{1,5}")


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
        from fedmime.engine.backends.local.backend import LocalBackend

        intake = needs.intake or Intake(problem.check)
        return LocalBackend(problem, model, self.devices, intake, needs.drift, self.layout, needs.expected)


@dataclasses.dataclass(frozen=True)
class Reference:
    """Eager Python, one client after another."""

    def start(self, problem: Problem, model: Any, needs: Needs = NO_NEEDS) -> Backend:
        """See `Specification.start`."""
        from fedmime.engine.backends.reference import ReferenceBackend

        return ReferenceBackend(problem, model, needs.intake or Intake(problem.check), needs.drift)


@dataclasses.dataclass(frozen=True)
class Ray:
    """Worker processes of Ray; see `ray`. In a `with` block, runs share workers, which stay until its end."""

    workers: int = 2
    address: str | None = None
    cores_per_worker: int = 1
    deadline: float = 600.0
    parts: int = 1

    def __post_init__(self) -> None:
        count("ray", "workers", self.workers, least=1)
        count("ray", "cores_per_worker", self.cores_per_worker, least=1)
        count("ray", "parts", self.parts, least=1)
        real("ray", "deadline", self.deadline, POSITIVE)
        if self.address is not None and not _HOST_AND_PORT.fullmatch(str(self.address)):
            raise ConfigError(f"ray: address must be a cluster's, such as '10.0.0.1:6379', got {quote(self.address)}")

    def start(self, problem: Problem, model: Any, needs: Needs = NO_NEEDS) -> Backend:
        """See `Specification.start`. Processes start when the first round needs them."""
        from fedmime.engine.backends.ray import cluster
        from fedmime.engine.backends.ray.driver import RayBackend

        cluster.check(self.address)
        return RayBackend(problem, model, needs, self.options, self.workers * self.parts)

    def __enter__(self) -> Self:
        from fedmime.engine.backends.ray import cluster, crew

        cluster.check(self.address)
        crew.hold(self.options)
        return self

    def __exit__(self, *_: object) -> None:
        from fedmime.engine.backends.ray import crew

        crew.release(self.options)

    @property
    def options(self) -> Any:
        """How workers are started, as `seat.Options`."""
        from fedmime.engine.backends.ray.seat import Options

        return Options(self.workers, self.address, self.cores_per_worker, float(self.deadline))


Choice = str | Specification
NAMES = ("local", "reference", "ray")


def local(devices: int | None = None) -> Local:
    """The default: compiled programs on the local devices, all of them or the first `devices`."""
    return Local(devices)


def reference() -> Reference:
    """Clients run eagerly, one after another: slow, and the mode to debug in. Errors name the client and the stage."""
    return Reference()


def ray(
    workers: int = 2, address: str | None = None, cores_per_worker: int = 1, deadline: float = 600.0, parts: int = 1
) -> Ray:
    """Worker processes of Ray, on this machine or on a private cluster, for runs that outgrow one process.

    Numbers do not depend on which worker computes what, but on `workers * parts` and `cores_per_worker`, as those of
    `local` do on the number of devices: in the last bits.

    Args:
        workers: how many workers; on a cluster, those for which there is no room join the run when there is.
        address: of a running cluster, such as `"10.0.0.1:6379"`; by default a Ray is started here for the run.
        cores_per_worker: cores, and devices of JAX, of every worker.
        deadline: seconds after which a worker that does not answer is replaced, and its part given to another one.
        parts: parts of a cohort for each worker. With several, faster workers get more of them; where all are equally
            fast, one part is computed sooner than several.
    """
    return Ray(workers, address, cores_per_worker, deadline, parts)


def chosen(owner: str, backend: Choice, devices: int | None) -> Specification:
    """The back end that an argument names; `devices` is a short way to `local(devices)`."""
    if backend == "local":
        return Local(devices)
    if devices is not None:
        raise ConfigError(f"{owner}: devices is an option of backend='local', got devices={devices!r}")
    if backend == "reference":
        return Reference()
    if backend == "ray":
        return Ray()
    if isinstance(backend, str) or not callable(getattr(backend, "start", None)):
        names = ", ".join(map(repr, NAMES))
        raise ConfigError(f"{owner}: backend must be one of {names} or come from fm.backends, got {quote(backend)}")
    return backend
