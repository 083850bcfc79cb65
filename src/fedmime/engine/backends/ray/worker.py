"""The worker's half of the back end on Ray: a process that answers for parts of a cohort.

A worker has the problem and the population of a run, and a local back end for every part it was given. What phase 1 of
a part recorded (factors, cached gradients) stays here for phase 2. A worker that is asked for phase 2 of a part whose
phase 1 another one did, does phase 1 again first.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import jax
import numpy as np

from fedmime.aggregation.aggregator import Aggregator
from fedmime.algorithms.algorithm import Algorithm
from fedmime.engine.backends.backend import ClientMessages, Problem, Work
from fedmime.engine.backends.local.backend import LocalBackend
from fedmime.engine.backends.local.devices import lanes, mesh
from fedmime.engine.backends.local.layout import Layout
from fedmime.engine.backends.ray.handshake import Facts, Subject
from fedmime.engine.backends.ray.parts import Parcel, PartAnswer, accepted, arrived, plain
from fedmime.engine.intake import Intake
from fedmime.runs.slots import SlotFile

_MOST_PROBLEMS = 8  # that a worker keeps, with their compiled programs

Ref = Any
"""A list with one reference into Ray's object store. In a list, Ray leaves it to the worker to look it up."""


class MemoryFile(NamedTuple):
    """The file in which clients keep values, for workers that reach it."""

    path: str
    mark: str
    """A file beside it that only this run has; a worker that sees it reaches the run's own directory."""
    host: str
    """The driver's machine."""
    blank: Any
    """What a client that was never seen has kept."""


class Task(NamedTuple):
    """What a worker needs of a run before the first round."""

    problem: Ref
    """Pickled as a call where it has a name, as its functions elsewhere."""
    problem_name: str
    """The same for the same problem, so that its compiled programs are used again."""
    model: Any
    """Shapes and types."""
    population: Ref | None
    recipe: Ref
    modules: Sequence[str]
    """Those to compare, see `Subject`."""
    memory: MemoryFile | None
    drift: bool
    once: bool
    """Whether each client's data is checked once, as in a run."""
    part_size: int
    """How many members a part usually has; zero for a single round."""
    steps: np.ndarray | None
    """[clients with examples] local steps, where they are known."""


class Slots(NamedTuple):
    """Where a worker finds and puts the values of clients that train, in the run's `MemoryFile`."""

    old: Mapping[int, int]
    """By client; those that were never seen are missing."""
    new: Mapping[int, int]
    """By client, free slots."""


class Ask(NamedTuple):
    """What a part is asked for; see `Backend.ask`."""

    aggregator: Aggregator
    """The round's, with the clipping norms of the state."""
    bound: Any
    points: Parcel | None
    message: Parcel | None
    before: Parcel | None
    """The points of phase 1, for a worker that has not done it."""
    kept: Slots | Sequence[Any] | None
    """What the clients that train have kept: where to find it, or the values themselves in the clients' order."""
    algorithm: Algorithm
    """The round's; the points of a sweep differ in its numbers and have their parts in common."""


class Place(NamedTuple):
    """Where a worker runs, for messages."""

    host: str
    pid: int


class WorkerStatus(NamedTuple):
    """Versions, location and configuration that a worker reports before it receives work."""

    facts: Facts
    place: Place
    subject: Subject | None = None
    """The run that it is ready for. None before a run, or if its versions differ from those of the driver."""
    reaches_memory: bool = False
    """Whether it can read and write what clients keep."""


class PartMemory:
    """A client memory of the clients of one part, whose values came with it; what they write is collected."""

    def __init__(self, values: Mapping[int, Any]) -> None:
        self._values = values
        self.new: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._values)

    def read(self, clients: Sequence[int]) -> list[Any]:
        """See `ClientMemory.read`."""
        return [self._values[client] for client in clients]

    def write(self, clients: Sequence[int], values: Sequence[Any]) -> Self:
        """See `ClientMemory.write`."""
        self.new |= dict(zip(clients, values, strict=True))
        return self


class SlotMemory:
    """A client memory of the clients of one part in the run's file; the slots of new values are collected.

    On another machine than the driver's, new values are on the file server's disk before the driver hears of them.
    """

    def __init__(self, memory: MemoryFile, slots: Slots) -> None:
        self._file, self._slots = SlotFile(Path(memory.path), memory.blank), slots
        self._durable = socket.gethostname() != memory.host
        self.new: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._slots.old)

    def read(self, clients: Sequence[int]) -> list[Any]:
        """See `ClientMemory.read`."""
        return self._file.read(clients, self._slots.old)

    def write(self, clients: Sequence[int], values: Sequence[Any]) -> Self:
        """See `ClientMemory.write`."""
        written = {client: self._slots.new[client] for client in clients}
        self._file.write(dict(zip(written.values(), values, strict=True)), self._durable)
        self.new |= written
        return self


class CollectingIntake(Intake):
    """An intake whose findings are collected for the driver, which reports them."""

    def __init__(self, check: Any, once: bool) -> None:
        super().__init__(check, once, said=set())
        self.found: list[tuple[str, object]] = []

    def say(self) -> None:
        """Say nothing here."""
        self._findings.clear()

    def _find(self, finding: str, what: object = None) -> None:
        self.found.append((finding, what))

    def taken(self) -> list[tuple[str, object]]:
        """The findings since the last call."""
        found, self.found = self.found, []
        return found


class _Run:
    """One run on this worker."""

    def __init__(self, task: Task, problem: Problem, population: Any) -> None:
        self._task, self._problem, self.population = task, problem, population
        self._intake = CollectingIntake(problem.check, task.once)
        self._layout = Layout(mesh().size * lanes(), problem.chunk)
        if task.steps is not None:
            sizes = population.sizes
            self._layout.reserve(sizes[sizes > 0], task.steps, task.part_size)
            self._layout.size("pool", self._layout.lanes * self._layout.size("examples", 1))
        self._backends: dict[int, LocalBackend] = {}  # by part
        self._works: dict[int, dict[int, Work]] = {}  # by part and round: the current one, and the next
        self._begun: dict[int, int] = {}  # by part, the round whose phase 1 was done here

    def work(self, number: int, round_id: int, ref: Ref) -> Work:
        """A part's work of a round, received once."""
        works = self._works.setdefault(number, {})
        if round_id not in works:
            work = arrived(_got(ref).work, self.population)
            register(work.algorithm)
            works[round_id] = work
            for old in list(works)[:-2]:  # in the order in which they came
                del works[old]
        return works[round_id]

    def backend(self, number: int) -> LocalBackend:
        """The local back end of a part. All of them share the sizes of their tables, and so their programs."""
        if number not in self._backends:
            task = self._task
            given = (self._problem, task.model, None, self._intake, task.drift, self._layout)
            self._backends[number] = LocalBackend(*given)
        return self._backends[number]

    def ask(self, number: int, round_id: int, ref: Ref, ask: Ask) -> PartAnswer:
        """See `Backend.ask`."""
        register((ask.aggregator, ask.algorithm))
        local, work = self.backend(number), self.work(number, round_id, ref)
        work = work._replace(aggregator=ask.aggregator, algorithm=ask.algorithm)
        points, message, before = map(_unpacked, (ask.points, ask.message, ask.before))
        start = time.perf_counter()
        local.memory = memory = self._memory(work, ask.kept)
        if self._begun.get(number) != round_id:
            local.settle(work, accepted=False)  # of a round that did not come to phase 2
            if before is not None:
                local.ask(work, before, bound=ask.bound)
        self._begun[number] = round_id
        answer = local.ask(work, points or (), message, ask.bound)
        sums = plain((answer.gradients, answer.share, answer.totals, answer.unclipped))
        refused = {client: int(reason) for client, reason in answer.refused().items()}
        losses = answer.losses() if work.wants_losses and answer.losses is not None else {}
        if message is not None:
            local.settle(work, accepted=True)  # frees what phase 1 recorded, and collects what clients keep
        gradients, share, totals, unclipped = sums
        gradients = tuple(accepted(each) if isinstance(each, ClientMessages) else each for each in gradients)
        if totals is not None and totals.messages is not None:
            totals = totals._replace(messages=accepted(totals.messages))
        new = {} if memory is None else memory.new
        seconds = time.perf_counter() - start
        found = self._intake.taken()
        return PartAnswer(gradients, share, totals, answer.clients, refused, unclipped, new, found, seconds, losses)

    def _memory(self, work: Work, kept: Slots | Sequence[Any] | None) -> PartMemory | SlotMemory | None:
        """What the clients that train have kept."""
        if kept is None:
            return None
        if isinstance(kept, Slots):
            assert self._task.memory is not None
            return SlotMemory(self._task.memory, kept)
        return PartMemory(dict(zip([member.client for member in work.cohort.training], kept, strict=True)))


class Worker:
    """The actor."""

    def __init__(self) -> None:
        self._problems: collections.OrderedDict[str, Problem] = collections.OrderedDict()
        self._runs: dict[str, _Run] = {}

    def hello(self) -> WorkerStatus:
        """Say what this process is, and where."""
        return WorkerStatus(Facts.here(), Place(socket.gethostname(), os.getpid()))

    def build(self, run: str, task: Task, expected: Facts) -> WorkerStatus:
        """Get ready for a run. A worker with other versions than the driver does not look at what it was sent."""
        status = self.hello()
        if status.facts != expected:
            return status
        if task.problem_name not in self._problems:
            self._problems[task.problem_name] = _got(task.problem)
            while len(self._problems) > _MOST_PROBLEMS:
                self._problems.popitem(last=False)
        problem = self._problems[task.problem_name]
        population = None if task.population is None else _got(task.population)
        self._runs[run] = _Run(task, problem, population)
        subject = Subject.of(problem, population, _got(task.recipe), task.modules)
        reaches = task.memory is not None and Path(task.memory.mark).is_file()
        return status._replace(subject=subject, reaches_memory=reaches)

    def forget(self, run: str) -> None:
        """Free what a run took."""
        self._runs.pop(run, None)

    def prepare(self, run: str, number: int, round_id: int, part: Ref) -> None:
        """Read and lay out a part ahead of time. An error is raised when the round's turn comes."""
        try:
            found = self._runs[run]
            found.backend(number).prepare(found.work(number, round_id, part))
        except Exception:
            return

    def ask(self, run: str, number: int, round_id: int, part: Ref, ask: Ask) -> PartAnswer:
        """See `Backend.ask`."""
        return self._runs[run].ask(number, round_id, part, ask)


def register(recipe: Any) -> None:
    """Make recipes pytrees here, too, whose classes came from the user's program instead of a module."""
    if isinstance(recipe, tuple | list):
        for each in recipe:
            register(each)
    elif dataclasses.is_dataclass(recipe) and not isinstance(recipe, type):
        if any(leaf is recipe for leaf in jax.tree.leaves(recipe)):
            jax.tree_util.register_dataclass(type(recipe))
        for field in dataclasses.fields(recipe):
            register(getattr(recipe, field.name))


def _unpacked(parcel: Parcel | None) -> Any:
    return None if parcel is None else parcel.filled([_got([ref]) for ref in parcel.refs])


def _got(ref: Ref) -> Any:
    """What a reference stands for. An error in opening it here, such as a store that is missing, is raised as it is."""
    import ray
    from ray.exceptions import RaySystemError

    try:
        return ray.get(ref[0])
    except RaySystemError as error:
        raise error.client_exc from None
