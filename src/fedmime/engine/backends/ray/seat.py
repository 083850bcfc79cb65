"""One worker process as the driver sees it, and what workers claim of a cluster."""

from __future__ import annotations

import collections
import statistics
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from fedmime.engine.backends.ray.worker import Place

_RECENT = 8  # phases from which a worker's pace is taken
_ENOUGH = 3  # phases without which it is taken for an average one
_FORGET = 60  # phases without a part after which it gets another chance


class Options(NamedTuple):
    """How workers are started."""

    workers: int
    address: str | None
    cores: int
    deadline: float

    def claims(self, resources: Mapping[str, float]) -> dict[str, float]:
        """What every worker claims of a cluster that has these resources: its cores, and one GPU where there are any.

        In a Ray of our own, workers claim no cores, so that any number of them fits.
        """
        cores = 0 if self.address is None else self.cores
        return {"num_cpus": cores, "num_gpus": 1 if resources.get("GPU", 0) else 0}

    def room(self, resources: Mapping[str, float]) -> int:
        """How many of the workers fit into a cluster that has these resources; others wait until it grows."""
        claimed = self.claims(resources)
        pairs = ((resources.get("CPU", 0), claimed["num_cpus"]), (resources.get("GPU", 0), claimed["num_gpus"]))
        return int(min([self.workers, *(there // each for there, each in pairs if each)]))


class Seat:
    """The driver's handle of one worker process. A replacement gets a new handle with the same number.

    Attributes:
        number: which of the workers it is.
        actor: Ray's handle.
        place: where it runs; None until it has answered.
        alive: whether it can still be used.
        building: references to the replies that are still to come before it is ready, each with the name of the run
            that it prepares. An empty run name marks the reply to the initial `hello` call.
        reaches: runs whose client memory it can read and write.
        waiting: parts it was given and has not answered.
    """

    def __init__(self, number: int, actor: Any) -> None:
        self.number, self.actor = number, actor
        self.place: Place | None = None
        self.alive, self.waiting = True, 0
        self.building: list[tuple[Any, str]] = []
        self.reaches: set[str] = set()
        self._since = time.monotonic()  # the last sign of life, or what it was last given while idle
        self._paces: collections.deque[float] = collections.deque(maxlen=_RECENT)
        self._rests = 0

    def __str__(self) -> str:
        where = "" if self.place is None else f" (process {self.place.pid} on {self.place.host})"
        return f"worker {self.number}{where}"

    @property
    def ready(self) -> bool:
        """Whether it can be given parts."""
        return self.alive and not self.building and self.place is not None

    @property
    def silent(self) -> float:
        """Seconds since it has said anything, while it had something to do."""
        return time.monotonic() - self._since

    @property
    def pace(self) -> float:
        """How long it takes for a unit of work, as a multiple of what an average worker takes.

        It is a median over recent phases, which one with a compilation in it does not move.
        """
        return statistics.median(self._paces) if len(self._paces) >= _ENOUGH else 1.0

    def given(self, part: bool = True) -> None:
        """It was given something to do."""
        if not self.waiting:
            self._since = time.monotonic()
        self.waiting += part

    def answered(self) -> None:
        """It has answered a part."""
        self._since = time.monotonic()
        self.waiting -= 1

    def measured(self, pace: float) -> None:
        """It has computed in a phase, at this pace."""
        self._paces.append(pace)
        self._rests = 0

    def rested(self) -> None:
        """It was given no part in a phase. It may be as fast as others again, which only trying can tell."""
        self._rests += 1
        if self._rests == _FORGET:
            self._paces.clear()
