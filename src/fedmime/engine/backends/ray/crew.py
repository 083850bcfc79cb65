"""The workers of a back end: started, compared with the driver, given parts, and replaced when they die or hang."""

from __future__ import annotations

import collections
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

from fedmime.engine.backends.ray.cluster import CLUSTER
from fedmime.engine.backends.ray.worker import Answer, Facts, Place, Task, Worker
from fedmime.errors import ClusterError, ConfigError
from fedmime.runs.notes import notes, warnings

_MOST_LOSSES = 3  # workers that may die over one part, or in starting, before the part is taken for the cause
_OTHERS = 60.0  # seconds that a run waits for further workers once one is ready
_LOOK = 1.0  # seconds between looks at workers that do not answer
_CREATION = "error raised in its creation task"  # as Ray says it: the next worker would fail in the same way
_RESUME = "what was saved last is whole: resume goes on from there, on any back end"

Call = Callable[[Any], Any]
"""Sends a part to an actor; returns Ray's reference to the answer."""


class Options(NamedTuple):
    """How workers are started."""

    workers: int
    address: str | None
    cores: int
    deadline: float


class Seat:
    """One worker process. A worker that replaces it gets a seat of its own."""

    def __init__(self, number: int, actor: Any) -> None:
        self.number, self.actor = number, actor
        self.place: Place | None = None  # None until it has answered
        self.alive = True
        self.load = 0  # parts it was given and has not answered
        self.since = time.monotonic()  # of the last part that it answered, or was given while idle
        self.building: list[tuple[Any, str]] = []  # runs it gets ready for, with references to its answers

    def __str__(self) -> str:
        where = "" if self.place is None else f" (process {self.place.pid} on {self.place.host})"
        return f"worker {self.number}{where}"

    @property
    def ready(self) -> bool:
        """Whether it can be given parts."""
        return self.alive and not self.building and self.place is not None


class Crew:
    """So many workers, each on as many cores."""

    def __init__(self, options: Options) -> None:
        CLUSTER.take(options.address)
        self._options, self._facts = options, Facts.here()
        self._tasks: dict[str, tuple[Task, str | None]] = {}  # runs, each with the identity of its data
        self._losses = 0  # workers that died before they answered once, in a row
        self.seats = [self._hire(number) for number in range(options.workers)]

    def close(self) -> None:
        """End the workers, and Ray if it is ours."""
        import ray

        for seat in self.seats:
            with contextlib.suppress(Exception):
                ray.kill(seat.actor)
        self.seats = []
        CLUSTER.release()

    def begin(self, run: str, task: Task, data: str | None) -> None:
        """Get all workers ready for a run; returns when one is, and the others are or have had time enough."""
        self._tasks[run] = task, data
        for seat in self.seats:
            if seat.place is not None:  # others are told when they have said who they are
                self._build(seat, run)
        self._await_one()
        until = time.monotonic() + min(_OTHERS, self._options.deadline)
        while not all(seat.ready for seat in self.seats) and time.monotonic() < until:
            self._admit(_LOOK)

    def end(self, run: str) -> None:
        """Let workers free what a run took."""
        self._tasks.pop(run, None)
        for seat in self.seats:
            seat.building = [(ref, other) for ref, other in seat.building if other != run]
            with contextlib.suppress(Exception):
                seat.actor.forget.remote(run)

    def hint(self, number: int, call: Call) -> None:
        """Send something to the worker that a part will most likely go to, and do not wait for an answer."""
        seat = self.seats[number % len(self.seats)]
        if seat.ready:
            with contextlib.suppress(Exception):
                call(seat.actor)

    def run(self, calls: Mapping[int, Call], placed: dict[int, Seat]) -> dict[int, Any]:
        """The answers of all parts, by number.

        Args:
            calls: sends each part.
            placed: who has done the last phase of each part, which is updated; the same worker does the next one.
        """
        import ray
        from ray.exceptions import RayError, RayTaskError

        self._check_head()
        self._admit(0)
        waiting: dict[Any, tuple[int, Seat]] = {}
        losses: collections.Counter[int] = collections.Counter()
        answers: dict[int, Any] = {}

        def send(number: int) -> None:
            seat = self._seat_for(number, placed.get(number))
            if not seat.load:
                seat.since = time.monotonic()
            seat.load += 1
            placed[number] = seat
            waiting[calls[number](seat.actor)] = number, seat

        for seat in self.seats:
            seat.load = 0
        for number in calls:
            send(number)
        while waiting:
            ready, _ = ray.wait(list(waiting), num_returns=1, timeout=_LOOK)
            for ref in ready:
                number, seat = waiting.pop(ref)
                try:
                    answers[number] = ray.get(ref)
                except RayTaskError as error:
                    raise _cause(error) from None
                except RayError as error:
                    losses[number] += seat.alive
                    self._lose(seat, _first_line(error))
                    if losses[number] >= _MOST_LOSSES:
                        words = f"ray: {losses[number]} workers have died over the same part of a cohort"
                        raise ClusterError(f"{words}, the last of them: {_first_line(error)}; {_RESUME}") from None
                    send(number)
                else:
                    seat.since, seat.load = time.monotonic(), seat.load - 1
            if not ready:
                self._look_after({seat for _, seat in waiting.values()})
        return answers

    def _hire(self, number: int) -> Seat:
        """Start a worker. Its number of devices must be set before anything there imports JAX."""
        import ray

        options = self._options
        variables = {
            "JAX_NUM_CPU_DEVICES": str(options.cores),
            "JAX_ENABLE_X64": str(int(self._facts.float64)),
            "OMP_NUM_THREADS": str(options.cores),
        }
        cpus: float = options.cores
        if path := os.environ.get("PYTHONPATH"):
            variables["PYTHONPATH"] = path
        if options.address is None:  # our own machine: the same code, whatever way it was found, and the same caches
            variables["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
            cpus = 0
            if kept := getattr(jax.config, "jax_compilation_cache_dir", None):
                variables["JAX_COMPILATION_CACHE_DIR"] = str(kept)
        actor = ray.remote(Worker).options(
            num_cpus=cpus, max_restarts=0, max_task_retries=0, runtime_env={"env_vars": variables}
        )
        seat = Seat(number, actor.remote())
        seat.building.append((seat.actor.hello.remote(), ""))
        return seat

    def _build(self, seat: Seat, run: str) -> None:
        seat.since = time.monotonic()
        seat.building.append((seat.actor.build.remote(run, self._tasks[run][0], self._facts), run))

    def _admit(self, timeout: float) -> None:
        """Take note of workers that have got ready, and replace those that have died before they did."""
        import ray
        from ray.exceptions import RayError, RayTaskError

        for seat in list(self.seats):
            if seat.building:
                self._lose_if_late(seat)
        refs = {ref: (seat, run) for seat in self.seats for ref, run in seat.building}
        if not refs:
            return
        ready, _ = ray.wait(list(refs), num_returns=len(refs) if not timeout else 1, timeout=timeout)
        for ref in ready:
            seat, run = refs[ref]
            if not seat.alive:
                continue
            try:
                answer = ray.get(ref)
            except RayTaskError as error:
                raise _cause(error) from None
            except RayError as error:
                self._losses += 1
                if _CREATION in str(error) or self._losses >= _MOST_LOSSES * len(self.seats):
                    hint = "has its machine the fedmime of the driver?"
                    raise ClusterError(f"ray: no worker starts: {_last_line(error)}; {hint}") from None
                self._lose(seat, _first_line(error))
            else:
                self._losses = 0
                self._compare(seat, answer, run)
                seat.building = [each for each in seat.building if each[0] != ref]
                if not run:
                    for each in self._tasks:
                        self._build(seat, each)

    def _compare(self, seat: Seat, answer: Answer, run: str) -> None:
        """Refuse a worker that would compute other numbers, or the same ones of other data."""
        seat.place = answer.place
        for name, theirs, ours in zip(Facts._fields, answer.facts, self._facts, strict=True):
            if theirs != ours:
                raise ConfigError(f"ray: {seat} has {name} {theirs!r}, the driver has {ours!r}; install the same")
        if run in self._tasks and answer.data != self._tasks[run][1]:
            words = f"sha256 {answer.data} instead of {self._tasks[run][1]}"
            raise ConfigError(f"ray: {seat} has other data than the driver: {words}")

    def _await_one(self) -> None:
        """Wait until one worker can be given parts."""
        until = time.monotonic() + self._options.deadline
        while not any(seat.ready for seat in self.seats):
            self._admit(_LOOK)
            self._check_head()
            if time.monotonic() > until:
                words = f"ray: no worker has answered within {self._options.deadline:g} seconds"
                raise ClusterError(f"{words}; has the cluster {self._options.cores} free cores? {_RESUME}")

    def _seat_for(self, number: int, before: Seat | None) -> Seat:
        """Who gets a part: the one that has done its last phase, else the one of its number, else the least busy."""
        if not any(seat.ready for seat in self.seats):
            self._await_one()
        home = self.seats[number % len(self.seats)]
        for seat in (before, home):
            if seat is not None and seat.ready:
                return seat
        return min((seat for seat in self.seats if seat.ready), key=lambda seat: (seat.load, seat.number))

    def _lose(self, seat: Seat, why: str) -> None:
        """Replace a worker; the new one is given parts as soon as it has answered."""
        import ray

        if not seat.alive:
            return
        seat.alive = False
        self._check_head()
        if seat.place is not None:
            warnings.warning("ray: %s is lost and is replaced; others do its part meanwhile", seat)
        notes.info("ray: %s: %s", seat, why)
        with contextlib.suppress(Exception):
            ray.kill(seat.actor)
        self.seats[seat.number] = self._hire(seat.number)

    def _look_after(self, busy: set[Seat]) -> None:
        """Replace workers that have not answered for longer than the deadline."""
        self._admit(0)
        self._check_head()
        for seat in busy:
            self._lose_if_late(seat)

    def _lose_if_late(self, seat: Seat) -> None:
        """Replace a worker that hangs. Ray then answers for its parts with an error, upon which others do them."""
        deadline = self._options.deadline
        if not seat.alive or seat.place is None or time.monotonic() - seat.since <= deadline:
            return
        self._lose(seat, f"no answer for {deadline:g} seconds")
        if self._options.address is None:  # it may not even listen to Ray
            with contextlib.suppress(ProcessLookupError):
                os.kill(seat.place.pid, signal.SIGKILL)

    def _check_head(self) -> None:
        if not any(CLUSTER.alive() or time.sleep(_LOOK) for _ in range(3)):
            raise ClusterError(f"ray: the head of the cluster does not answer any more; {_RESUME}")


def _cause(error: Any) -> Exception:
    """What was raised on a worker, with the worker's traceback as a note."""
    cause = error.cause if isinstance(error.cause, Exception) else error
    cause.add_note(str(error))
    return cause


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


def _last_line(error: BaseException) -> str:
    """Where Ray quotes a traceback, its last line is what was raised."""
    return str(error).strip().rpartition("\n")[2].strip()


class _Open(NamedTuple):
    crew: Crew
    users: list[object]


_open: dict[Options, _Open] = {}
_kept: collections.Counter[Options] = collections.Counter()


def keep(options: Options) -> None:
    """Let the crew of these options stay without users, once one has started it."""
    _kept[options] += 1


def let_go(options: Options) -> None:
    """The opposite of `keep`."""
    _kept[options] -= 1
    _close_if_unused(options)


def take(options: Options, user: object) -> Crew:
    """The crew of these options, which back ends share as long as one of them uses it."""
    if options not in _open:
        _open[options] = _Open(Crew(options), [])
    _open[options].users.append(user)
    return _open[options].crew


def release(options: Options, user: object) -> None:
    """Use a crew no longer; without users it is closed."""
    if options in _open and user in _open[options].users:
        _open[options].users.remove(user)
        _close_if_unused(options)


def _close_if_unused(options: Options) -> None:
    if options in _open and not _open[options].users and _kept[options] <= 0:
        _open.pop(options).crew.close()
