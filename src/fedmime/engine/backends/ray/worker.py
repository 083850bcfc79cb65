"""The worker's half of the back end on Ray: a process that answers for parts of a cohort.

A worker has the problem and the population of a run, and a local back end for every part it was given. What phase 1 of
a part kept (factors, cached gradients) stays here for phase 2. A worker that is asked for phase 2 of a part whose
phase 1 another one did, does phase 1 again first.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import platform
import socket
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, NamedTuple, Self

import jax
import numpy as np

from fedmime.aggregation.aggregator import Aggregator
from fedmime.engine.backends.backend import Kept, Problem, Work
from fedmime.engine.backends.local.devices import lanes, mesh
from fedmime.engine.backends.local.dispatch import LocalBackend
from fedmime.engine.backends.local.layout import Layout
from fedmime.engine.backends.ray.parts import PartAnswer, accepted, arrived, plain
from fedmime.engine.intake import Intake
from fedmime.version import exact

_MOST_PROBLEMS = 8  # that a worker keeps, with their compiled programs

Ref = Any
"""A list with one reference into Ray's object store. In a list, Ray leaves it to the worker to look it up."""


class Task(NamedTuple):
    """What a worker needs of a run before the first round."""

    problem: Ref
    problem_name: str
    """The same for the same problem of the same driver, so that its compiled programs are used again."""
    model: Any
    """Shapes and types."""
    population: Ref | None
    drift: bool
    once: bool
    """Whether each client's data is checked once, as in a run."""
    part_size: int
    """How many members a part usually has; zero for a single round."""
    steps: np.ndarray | None
    """[clients with examples] local steps, where they are known."""


class Ask(NamedTuple):
    """What a part is asked for; see `Backend.ask`."""

    aggregator: Aggregator
    """The round's, with the clipping norms of the state."""
    bound: Any
    points: Ref | None
    message: Ref | None
    before: Ref | None
    """The points of phase 1, for a worker that has not done it."""
    kept: Sequence[Any] | None
    """What the clients that train have kept, in their order."""


class Facts(NamedTuple):
    """What must be the same in all processes of a run."""

    fedmime: str
    jax: str
    numpy: str
    python: str
    float64: bool
    platform: str

    @classmethod
    def here(cls) -> Self:
        """Those of this process."""
        wide = bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]
        python = ".".join(platform.python_version_tuple()[:2])
        return cls(exact(), version("jax"), version("numpy"), python, wide, jax.default_backend())


class Place(NamedTuple):
    """Where a worker runs, for messages."""

    host: str
    pid: int


class Answer(NamedTuple):
    """What a worker says of itself."""

    facts: Facts
    place: Place
    data: str | None
    """The identity of the population that it has opened for a run, if it has one."""


class PartMemory:
    """A client memory of the clients of one part; what they write is collected."""

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
            for old in sorted(works)[:-2]:
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
        register(ask.aggregator)
        local, work = self.backend(number), self.work(number, round_id, ref)._replace(aggregator=ask.aggregator)
        points, message, before = (None if r is None else _got(r) for r in (ask.points, ask.message, ask.before))
        memory = None
        if ask.kept is not None:
            memory = PartMemory(dict(zip([m.client for m in work.cohort.training], ask.kept, strict=True)))
        local.memory = memory
        if self._begun.get(number) != round_id:
            local.settle(work, accepted=False)  # of a round that did not come to phase 2
            if before is not None:
                local.ask(work, before, bound=ask.bound)
        self._begun[number] = round_id
        answer = local.ask(work, points or (), message, ask.bound)
        sums = plain((answer.gradients, answer.share, answer.totals, answer.unclipped))
        refused = {client: int(reason) for client, reason in answer.refused().items()}
        if message is not None:
            local.settle(work, accepted=True)  # frees what phase 1 kept, and collects what clients keep
        gradients, share, totals, unclipped = sums
        gradients = tuple(accepted(each) if isinstance(each, Kept) else each for each in gradients)
        if totals is not None and totals.kept is not None:
            totals = totals._replace(kept=accepted(totals.kept))
        new = {} if memory is None else memory.new
        return PartAnswer(gradients, share, totals, answer.clients, refused, unclipped, new, self._intake.taken())


class Worker:
    """The actor."""

    def __init__(self) -> None:
        self._problems: collections.OrderedDict[str, Problem] = collections.OrderedDict()
        self._runs: dict[str, _Run] = {}

    def hello(self) -> Answer:
        """Say what this process is, and where."""
        return Answer(Facts.here(), Place(socket.gethostname(), os.getpid()), None)

    def build(self, run: str, task: Task, expected: Facts) -> Answer:
        """Get ready for a run. A worker with other versions than the driver does not look at what it was sent."""
        answer = self.hello()
        if answer.facts != expected:
            return answer
        if task.problem_name not in self._problems:
            self._problems[task.problem_name] = _got(task.problem)
            while len(self._problems) > _MOST_PROBLEMS:
                self._problems.popitem(last=False)
        population = None if task.population is None else _got(task.population)
        self._runs[run] = _Run(task, self._problems[task.problem_name], population)
        return answer._replace(data=identity(population))

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


def identity(population: Any) -> str | None:
    """Which data it is; None for data that came from the driver itself, or has no name."""
    if population is None or getattr(population, "resident", False) or not hasattr(population, "identity"):
        return None
    return population.identity()


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


def _got(ref: Ref) -> Any:
    """What a reference stands for. An error in opening it here, such as a store that is missing, is raised as it is."""
    import ray
    from ray.exceptions import RaySystemError

    try:
        return ray.get(ref[0])
    except RaySystemError as error:
        raise error.client_exc from None
