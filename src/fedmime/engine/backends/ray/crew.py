"""The workers of a back end: started, compared with the driver, and replaced when they die or hang.

There are always as many seats, the driver's handles of worker processes, as workers were asked for. The process of a
seat waits until the cluster has room for it. A process that is lost, for example because its machine leaves, gets a
replacement with the same number and a new seat. So workers come and go between rounds.
"""

from __future__ import annotations

import collections
import contextlib
import os
import signal
import sys
import time
from collections.abc import Collection
from typing import Any

import jax

from fedmime.engine.backends.ray.cluster import CLUSTER
from fedmime.engine.backends.ray.handshake import Facts, Subject
from fedmime.engine.backends.ray.seat import Options, Seat
from fedmime.engine.backends.ray.worker import Task, Worker, WorkerStatus
from fedmime.errors import ClusterError, ConfigError
from fedmime.kernels import build
from fedmime.runs.notes import notes, warnings

LOOK = 1.0  # seconds between looks at workers that do not answer
MOST_LOSSES = 3  # workers that may die over one part, or in starting, before the part is taken for the cause
RESUME = "what was saved last is whole: resume goes on from there, on any back end"
_OTHERS = 60.0  # seconds that a run waits for further workers once one is ready
_CREATION = "error raised in its creation task"  # as Ray says it: the next worker would fail in the same way


class Crew:
    """So many workers, each on as many cores.

    Attributes:
        seats: the workers by number, ready or not.
        lost: those that have died or hung so far, each with the reason.
    """

    def __init__(self, options: Options) -> None:
        CLUSTER.take(options.address)
        self._options, self._facts = options, Facts.here()
        self._tasks: dict[str, tuple[Task, Subject]] = {}  # by run
        self._failures = 0  # workers that died before they answered once, in a row
        self._waited = False  # whether a run has waited for workers that are still to come
        self.lost: list[tuple[Seat, str]] = []
        try:
            self.seats = [self._hire(number) for number in range(options.workers)]
        except BaseException:
            CLUSTER.release()
            raise

    def close(self) -> None:
        """End the workers, and Ray if it is ours."""
        import ray

        for seat in self.seats:
            with contextlib.suppress(Exception):
                ray.kill(seat.actor)
        self.seats = []
        CLUSTER.release()

    def begin(self, run: str, task: Task, subject: Subject) -> None:
        """Get workers ready for a run; returns when one is, and the others are or have had time enough."""
        import ray

        self._tasks[run] = task, subject
        known = [seat for seat in self.seats if seat.place is not None or not seat.alive]
        for seat in known:
            if seat.alive:
                self._build(seat, run)  # others are told when they have answered
        self.await_one()
        wanted = len(known) if self._waited else self._options.room(ray.cluster_resources())
        until = time.monotonic() + min(_OTHERS, self._options.deadline)
        while sum(seat.ready or not seat.alive for seat in self.seats) < wanted and time.monotonic() < until:
            self.admit(LOOK)
        self._waited = True
        if any(seat.alive and not seat.ready for seat in self.seats):
            words = "ray: %d of %d workers are ready; others join the run when they are"
            warnings.warning(words, len(self.ready), len(self.seats))

    def end(self, run: str) -> None:
        """Let workers free what a run took."""
        self._tasks.pop(run, None)
        for seat in self.seats:
            seat.building = [(ref, other) for ref, other in seat.building if other != run]
            with contextlib.suppress(Exception):
                seat.actor.forget.remote(run)

    @property
    def ready(self) -> list[Seat]:
        """The workers that can be given parts."""
        return [seat for seat in self.seats if seat.ready]

    def await_one(self) -> None:
        """Wait until one worker can be given parts."""
        until = time.monotonic() + self._options.deadline
        while not self.ready:
            self.admit(LOOK)
            self.check_head()
            if time.monotonic() > until:
                words = f"ray: no worker has answered within {self._options.deadline:g} seconds"
                raise ClusterError(f"{words}; has the cluster {self._options.cores} free cores? {RESUME}")

    def admit(self, timeout: float) -> None:
        """Take note of workers that have got ready, and replace those that have died before they did.

        A worker that cannot work as the driver does is left out; while no other one is ready, that is an error.
        """
        import ray
        from ray.exceptions import RayError, RayTaskError

        self._lose_late([seat for seat in self.seats if seat.building])
        refs = {ref: (seat, run) for seat in self.seats for ref, run in seat.building}
        if not refs:
            return
        answered, _ = ray.wait(list(refs), num_returns=1 if timeout else len(refs), timeout=timeout)
        for ref in answered:
            seat, run = refs[ref]
            if not seat.alive:
                continue
            try:
                self._greet(seat, ray.get(ref), run)
            except RayTaskError as error:
                self._leave_out(seat, cause_of(error))
            except ConfigError as error:
                self._leave_out(seat, error)
            except RayError as error:
                self._failures += 1
                if _CREATION in str(error) or self._failures >= MOST_LOSSES * len(self.seats):
                    last = str(error).strip().rpartition("\n")[2].strip()  # of the traceback that Ray quotes
                    hint = "has its machine the fedmime of the driver?"
                    self._leave_out(seat, ClusterError(f"ray: no worker starts: {last}; {hint}"))
                else:
                    self.lose(seat, first_line(error))
            else:
                self._failures = 0
                seat.building = [each for each in seat.building if each[0] != ref]
                if not run:
                    for each in self._tasks:
                        self._build(seat, each)

    def lose(self, seat: Seat, why: str) -> None:
        """Replace a worker; the new one is given parts as soon as it has answered."""
        import ray

        if not seat.alive:
            return
        seat.alive = False
        self.check_head()
        if seat.place is not None:
            warnings.warning("ray: %s is lost and is replaced; others do its part meanwhile", seat)
            self.lost.append((seat, why))
        notes.info("ray: %s: %s", seat, why)
        with contextlib.suppress(Exception):
            ray.kill(seat.actor)
        self.seats[seat.number] = self._hire(seat.number)

    def look_after(self, busy: Collection[Seat]) -> None:
        """See who has got ready meanwhile, and replace workers that hang."""
        self.admit(0)
        self.check_head()
        self._lose_late(busy)

    def check_head(self) -> None:
        """Raise `ClusterError` if the head of the cluster is gone."""
        if not any(CLUSTER.alive() or time.sleep(LOOK) for _ in range(3)):
            raise ClusterError(f"ray: the head of the cluster does not answer any more; {RESUME}")

    def _hire(self, number: int) -> Seat:
        """Start a worker. Its number of devices must be set before anything there imports JAX."""
        import ray

        options = self._options
        variables = {
            "JAX_NUM_CPU_DEVICES": str(options.cores),
            "JAX_ENABLE_X64": str(int(self._facts.float64)),
            build.SWITCH: str(int(self._facts.kernels)),
            "OMP_NUM_THREADS": str(options.cores),
        }
        if path := os.environ.get("PYTHONPATH"):
            variables["PYTHONPATH"] = path
        if options.address is None:  # our own machine: the same code, whatever way it was found, and the same caches
            variables["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
            if cache := getattr(jax.config, "jax_compilation_cache_dir", None):
                variables["JAX_COMPILATION_CACHE_DIR"] = str(cache)
        given: dict[str, Any] = {"max_restarts": 0, "max_task_retries": 0, "runtime_env": {"env_vars": variables}}
        actor = ray.remote(Worker).options(**options.claims(ray.cluster_resources()), **given)
        seat = Seat(number, actor.remote())
        seat.building.append((seat.actor.hello.remote(), ""))
        return seat

    def _build(self, seat: Seat, run: str) -> None:
        """Let a worker get ready for a run."""
        seat.given(part=False)
        seat.building.append((seat.actor.build.remote(run, self._tasks[run][0], self._facts), run))

    def _greet(self, seat: Seat, status: WorkerStatus, run: str) -> None:
        """Refuse a worker that would compute other numbers, or the same ones of other data."""
        seat.place = status.place
        for name, theirs, ours in zip(Facts._fields, status.facts, self._facts, strict=True):
            if theirs != ours:
                raise ConfigError(f"ray: {seat} has {name} {theirs!r}, the driver has {ours!r}; install the same")
        if run in self._tasks and status.subject is not None:
            for difference in status.subject.differences(self._tasks[run][1]):
                raise ConfigError(f"ray: {seat} has {difference}")
            if status.reaches_memory:
                seat.reaches.add(run)

    def _leave_out(self, seat: Seat, why: Exception) -> None:
        """Go on without a worker. It is not replaced, since another one on its machine would be refused, too."""
        if not self.ready:
            raise why from None
        seat.alive, seat.building = False, []
        warnings.warning("%s; the run goes on without %s", first_line(why), seat)

    def _lose_late(self, seats: Collection[Seat]) -> None:
        """Replace workers that hang. Ray then answers for their parts with errors, upon which others do them."""
        deadline = self._options.deadline
        for seat in seats:
            if seat.alive and seat.place is not None and seat.silent > deadline:
                self.lose(seat, f"no answer for {deadline:g} seconds")
                if self._options.address is None:  # it may not even listen to Ray
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(seat.place.pid, signal.SIGKILL)


def cause_of(error: Any) -> Exception:
    """What was raised on a worker, with the worker's traceback as a note."""
    cause = error.cause if isinstance(error.cause, Exception) else error
    cause.add_note(str(error))
    return cause


def first_line(error: BaseException) -> str:
    """What an error says first."""
    return str(error).strip().partition("\n")[0]


_crews: dict[Options, Crew] = {}
_users: collections.Counter[Options] = collections.Counter()


def hold(options: Options) -> None:
    """Let the crew of these options stay until `release`, once it is started."""
    _users[options] += 1


def started(options: Options) -> Crew:
    """The crew of these options, which everybody shares who holds it."""
    if options not in _crews:
        _crews[options] = Crew(options)
    return _crews[options]


def release(options: Options) -> None:
    """The opposite of `hold`. When nobody holds a crew, it is closed."""
    _users[options] -= 1
    if not _users[options] and options in _crews:
        _crews.pop(options).close()
