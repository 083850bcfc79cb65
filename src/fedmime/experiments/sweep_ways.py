"""Who trains the points of a sweep: everything there is, one point after another, or workers with a share each.

In every round the devices of one point wait for each other, and those of different points do not, so that points side
by side are sooner done. With fewer points than workers some would be idle; then all of them train one point together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from fedmime.engine.backends.specification import Choice, Local, Ray, Specification
from fedmime.engine.backends.specification import chosen as specified
from fedmime.errors import ConfigError
from fedmime.experiments.sweep_processes import Processes
from fedmime.experiments.sweep_ray import OnRay
from fedmime.experiments.sweep_rounds import Lockstep, Stop
from fedmime.experiments.sweep_spread import Spread, Workers
from fedmime.experiments.sweep_trial import Trial
from fedmime.validation import count, quote

WORTH = 500  # rounds of all points from which on processes of their own are worth the seconds that they take to start
MOST = 8  # processes that are started unasked: each of them has the data and the compiled programs


def _nothing() -> None:
    return None


@dataclasses.dataclass(frozen=True)
class Staff:
    """What a sweep runs on.

    Args:
        backend: trains one point on everything there is.
        together: what that is, in words.
        workers: how many can train points side by side; one if nobody can.
        devices: of each of them.
        apart: what they are, in words.
        why: the reason of the choice, where there was one, in words.
        start: starts them for a job and the directory of its shelf.
        close: lets go of what `start` has left behind.
    """

    backend: Specification
    together: str
    workers: int = 1
    devices: int = 1
    apart: str = ""
    why: str = ""
    start: Callable[[str, Path], Workers] | None = None
    close: Callable[[], None] = _nothing


def staff(backend: Choice, workers: int | None, points: int, rounds: int, named: bool) -> Staff:
    """What a sweep runs on.

    Args:
        backend: the local one, or one on Ray.
        workers: processes on this machine; by default as many as are faster than one.
        points: of the grid.
        rounds: of all points together.
        named: whether workers can open the clients by the name of the task.
    """
    found = specified("sweep", backend, None)
    if isinstance(found, Ray):
        return _on_ray(found, workers, named)
    if not isinstance(found, Local):
        raise ConfigError(f"sweep: backend must be 'local' or 'ray', got {quote(backend)}")
    devices, platform = found.devices or len(jax.local_devices()), jax.default_backend()
    alone, why = f"{devices} {'devices' if devices > 1 else 'device'} of one process", ""
    if workers is None:
        workers, why = _by_default(devices, points, rounds) if named and platform == "cpu" else (1, "")
    elif count("sweep", "workers", workers, least=1) > 1 and not named:
        raise ConfigError(f"sweep: workers={workers} find clients by the task's name; a population of your own needs 1")
    elif workers > 1 and platform != "cpu":
        raise ConfigError(f"sweep: workers={workers} divide cores among them; the devices here are {platform!r}")
    workers = min(workers, points)
    if workers == 1:
        return Staff(found, alone, why=why)
    each = max(1, devices // workers)
    apart = f"{workers} processes with {each} of {devices} devices each"
    return Staff(found, alone, workers, each, apart, why, lambda job, _: Processes(job, workers, each))


def _by_default(devices: int, points: int, rounds: int) -> tuple[int, str]:
    """How many processes to start unasked, and why."""
    most = processes(devices, points)
    if most == 1:
        return 1, ""
    if rounds < WORTH:
        return 1, f", because {rounds} rounds are not worth starting {most} processes"
    return most, f", because {rounds} rounds are worth starting {most} processes"


def processes(devices: int, points: int) -> int:
    """How many processes divide devices and points best: many, but so that few devices are left over."""
    return max(n for n in range(1, min(devices, points, MOST) + 1) if devices % n <= devices // 4)


def _on_ray(found: Ray, workers: int | None, named: bool) -> Staff:
    if workers is not None:
        raise ConfigError(f"sweep: workers of Ray are given to fm.backends.ray, got workers={workers!r} beside it")
    words, on_ray = f"{found.workers} Ray workers", OnRay(found)
    if not named or found.workers == 1:
        return Staff(found, words)
    return Staff(found, words, found.workers, found.cores_per_worker, words, "", on_ray.start, on_ray.close)


class Ways:
    """The trials of a grid; every stretch of rounds is trained in one of the two ways, and `say` is told in which.

    Args:
        whole: trains one point after another.
        spread: trains points side by side; None if nobody can.
        staff: what both run on.
        say: called with a line whenever the way changes.
    """

    def __init__(
        self, whole: Lockstep, spread: Spread | None, staff: Staff, say: Callable[[str], None] | None = None
    ) -> None:
        self._whole, self._spread, self._staff, self._say = whole, spread, staff, say
        self._way: Any = None

    def advance(self, chosen: Sequence[Trial], until: int, on_round: Callable[[], None], stop: Stop = None) -> Any:
        """See `Lockstep.advance`.

        Points that are done already count, too: a sweep that was broken off goes on in the way in which it began, and
        so to the same bits.
        """
        points = sum(trial.unfinished(until) for trial in chosen)
        if not points:
            return None
        way = self._spread if self._spread is not None and len(chosen) >= self._staff.workers else self._whole
        if way is not self._way:
            self._change(way, points)
        return way.advance(chosen, until, on_round, stop)

    def close(self) -> None:
        """Let go of all processes."""
        if self._spread is not None:
            self._spread.close()
        self._whole.close()
        self._staff.close()

    def _change(self, way: Lockstep | Spread, points: int) -> None:
        if self._spread is not None and way is self._whole:
            self._spread.close()  # one point needs the cores that its workers have
        self._way = way
        if self._say is not None:
            self._say(f"sweep: {self._words(points)}")

    def _words(self, points: int) -> str:
        if self._way is self._spread:
            return f"{points} points on {self._staff.apart}, every point on one of them{self._staff.why}"
        few = f", because {self._staff.workers} workers are more than that"
        why = self._staff.why if self._spread is None else few
        return f"{points} points in turn, each on {self._staff.together}{why}"
