"""The driver's half of the back end on Ray: it splits rounds, sends parts to workers and adds up their answers."""

from __future__ import annotations

import contextlib
import functools
import itertools
import socket
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedmime import named
from fedmime.algorithms.algorithm import Message
from fedmime.engine.backends.backend import Answer, Backend, Problem, Work
from fedmime.engine.backends.local.backend import LocalBackend, check_messages
from fedmime.engine.backends.local.layout import in_words
from fedmime.engine.backends.ray import crew, dispatch
from fedmime.engine.backends.ray.handshake import Recipe, Subject, modules_of
from fedmime.engine.backends.ray.parts import Parcel, Part, added, plain, split
from fedmime.engine.backends.ray.seat import Options, Seat
from fedmime.engine.backends.ray.tally import Tally
from fedmime.engine.backends.ray.worker import Ask, MemoryFile, Slots, Task
from fedmime.engine.backends.specification import Needs
from fedmime.engine.cohort import Cohort
from fedmime.engine.intake import Intake
from fedmime.errors import ConfigError
from fedmime.runs.disk_memory import DiskMemory
from fedmime.runs.notes import notes
from fedmime.vector import Vector

_PROCESS = uuid.uuid4().hex  # workers may outlive a driver, so names of runs and problems belong to one
_numbers = itertools.count()


class _Round:
    """A round's parts, and where they are computed."""

    def __init__(self, cohort: Cohort, parts: Mapping[int, Part]) -> None:
        import ray

        self.id, self.cohort, self.parts = next(_numbers), cohort, parts
        self.refs = {number: [ray.put(part)] for number, part in parts.items()}
        self.points: Parcel | None = None  # those of phase 1
        self.places: dict[int, tuple[Any, int]] = {}  # by identity: an array that was sent, and its number
        self.sent: list[Any] = []  # references to the lists of such arrays
        self.placed: dict[int, Seat] = {}
        self.taken: dict[int, list[int]] = {}  # by part, slots of the memory file that its worker may write to
        self.written: dict[int, int] = {}  # by client, the slots with what it keeps if the server accepts the round
        self.new: dict[int, Any] = {}  # by client, such values that came here


class RayBackend(Backend):
    """Clients in parts. Workers are started when the first round needs them.

    Args:
        problem: what clients train.
        model: the model, or its shapes.
        needs: what the run needs.
        options: how workers are started.
        parts: how many parts a cohort has.
    """

    def __init__(self, problem: Problem, model: Any, needs: Needs, options: Options, parts: int) -> None:
        self.problem, self._model, self._needs, self._options, self._parts = problem, model, needs, options, parts
        self.layout = in_words(options.cores, parts)
        self._intake = needs.intake or Intake(problem.check)
        self._population = None if needs.expected is None else needs.expected.population
        self._run, self._crew = f"{_PROCESS}-{next(_numbers)}", None
        self._rounds: dict[int, _Round] = {}  # by round: the current one, and the next
        self._tally = Tally()
        self._mark: Path | None = None  # by which workers recognise the directory of the client memory

    def prepare(self, work: Work) -> None:
        """See `Backend.prepare`. Workers lay their parts out when they have finished the current round's."""
        workers, current = self._workers(work), self._round(work)
        if not workers.ready:
            return
        dispatch.place(workers, self._orders(current), current.placed, list(current.parts))
        with contextlib.suppress(Exception):  # whatever is wrong shows when the round's turn comes
            for number, seat in current.placed.items():
                seat.actor.prepare.remote(self._run, number, current.id, current.refs[number])

    def ask(
        self, work: Work, points: tuple[Vector, ...] = (), message: Message | None = None, bound: Any = np.inf
    ) -> Answer:
        """See `Backend.ask`."""
        check_messages(work, self._model)
        workers, current = self._workers(work), self._round(work)
        self._tally.begin(current.id, workers.lost)
        before, sent = current.points, None
        if points:
            current.points = self._put(current, points)
        if message is not None:
            sent = self._put(current, message)
        asked = current.points if points else None
        before = None if points else before
        ask = Ask(plain(work.aggregator), plain(bound), asked, sent, before, None, work.algorithm)
        received = dispatch.collect(workers, self._orders(current, ask), current.placed)
        self._tally.received(received.values())
        answers = {number: received[number].answer for number in sorted(received)}
        for number, answer in answers.items():
            (current.written if number in current.taken else current.new).update(answer.new)
            self._intake.repeat(answer.findings)
        return added(list(answers.values()), work.cohort)

    def settle(self, work: Work, accepted: bool) -> None:
        """See `Backend.settle`.

        Slots that a lost worker was given are not used again by this process, because it might still write to them.
        """
        current = self._rounds.pop(work.round, None)
        if current is None or self.memory is None:
            return
        if accepted:
            self.memory = self.memory.write(list(current.new), list(current.new.values()))
        if isinstance(self.memory, DiskMemory):
            self.memory.adopt(current.written if accepted else {})
            for slots in current.taken.values():
                self.memory.give_back(slots)

    def metrics(self, params: Any, batch: Mapping[str, np.ndarray]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """See `Backend.metrics`. The server's data is here, and so are its evaluations."""
        return self._here.metrics(params, batch)

    def telemetry(self) -> Mapping[str, float]:
        """See `Backend.telemetry`."""
        return self._tally.telemetry()

    def close(self) -> None:
        """See `Backend.close`. The run's log says what every worker has done."""
        workers, self._crew, self._rounds = self._crew, None, {}
        if self._mark is not None:
            self._mark.unlink(missing_ok=True)
        if workers is not None:
            for line in self._tally.lines():
                notes.info("ray: %s", line)
            workers.end(self._run)
            crew.release(self._options)

    @functools.cached_property
    def _here(self) -> LocalBackend:
        return LocalBackend(self.problem, self._model, None, self._intake, self._needs.drift)

    def _orders(self, current: _Round, ask: Ask | None = None) -> dict[int, dispatch.Order]:
        """The parts of a round, and how each is sent; without an `ask` they are only placed."""

        def send(part: Part, seat: Seat) -> Any:
            assert ask is not None
            kept = None if ask.message is None else self._kept(current, part, seat)
            given = (self._run, part.number, current.id, current.refs[part.number], ask._replace(kept=kept))
            return seat.actor.ask.remote(*given)

        return {n: dispatch.Order(part.cost, functools.partial(send, part)) for n, part in current.parts.items()}

    def _kept(self, current: _Round, part: Part, seat: Seat) -> Slots | list[Any] | None:
        """What a worker needs to know of what a part's clients have kept."""
        current.taken.pop(part.number, None)  # by a worker that was lost
        if self.memory is None:
            return None
        if isinstance(self.memory, DiskMemory) and self._run in seat.reaches:
            free = current.taken[part.number] = self.memory.take(len(part.training))
            return Slots(self.memory.slots(part.training), dict(zip(part.training, free, strict=True)))
        values = plain(self.memory.read(part.training))
        self._tally.sent(values, 0.0)
        return values

    def _put(self, current: _Round, tree: Any) -> Parcel:
        """What all workers need, its arrays copied once a round, such as x of the points and again of the message.

        Arrays are recognised by their identity; those that were sent are held, so that their identities stay their own.
        """
        import ray

        start, known = time.perf_counter(), len(current.places)
        for leaf in jax.tree.leaves(tree):
            current.places.setdefault(id(leaf), (leaf, len(current.places)))
        new = plain([leaf for leaf, number in current.places.values() if number >= known])
        if new:
            current.sent.append(ray.put(new))
        self._tally.sent(new, time.perf_counter() - start)
        return Parcel(jax.tree.map(lambda leaf: current.places[id(leaf)][1], tree), tuple(current.sent))

    def _round(self, work: Work) -> _Round:
        """The parts of a round, split once."""
        current = self._rounds.get(work.round)
        if current is None or current.cohort is not work.cohort:
            current = self._rounds[work.round] = _Round(work.cohort, split(work, self._parts, self._population))
            for old in list(self._rounds)[:-2]:
                del self._rounds[old]
        return current

    def _workers(self, work: Work) -> crew.Crew:
        """The workers, which know the run."""
        if self._crew is None:
            from ray import cloudpickle

            crew.hold(self._options)
            try:
                self._crew = crew.started(self._options)
                recipe = Recipe(work.algorithm, plain(work.aggregator), getattr(work.cohort.source, "schedule", None))
                for module in named.from_files():  # workers cannot import them by name
                    cloudpickle.register_pickle_by_value(module)
                modules = modules_of(self.problem, self._population, recipe)
                subject = Subject.of(self.problem, self._population, recipe, modules)
                self._crew.begin(self._run, self._task(recipe, subject), subject)
            except BaseException:
                if self._crew is None:
                    crew.release(self._options)
                self.close()
                raise
        return self._crew

    def _task(self, recipe: Recipe, subject: Subject) -> Task:
        needs, expected, population = self._needs, self._needs.expected, self._population
        shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(np.shape(a), a.dtype), self._model)
        size = 0 if expected is None else -(-expected.cohort_size // self._parts)
        portable = None
        if population is not None:
            portable = _sent("population", getattr(population, "portable", lambda: population)())
        return Task(
            _sent("problem", self.problem),
            _name(self.problem),
            shapes,
            portable,
            _sent("algorithm", recipe),
            list(subject.modules),
            self._memory_file(),
            needs.drift,
            self._intake.once,
            size,
            None if expected is None else expected.steps,
        )

    def _memory_file(self) -> MemoryFile | None:
        """Where clients keep values, if that is a file; its mark has a name that a resumed run cleans up."""
        if not isinstance(self.memory, DiskMemory):
            return None
        path = self.memory.path.absolute()
        self._mark = path.with_name(f".{self._run}.tmp")
        self._mark.touch()
        return MemoryFile(str(path), str(self._mark), socket.gethostname(), self.memory.blank)


_problems: dict[int, tuple[Problem, str]] = {}  # by identity; a problem is held, so that its identity stays its own


def _name(problem: Problem) -> str:
    """What workers call a problem: its origin, or a name that the same object always has."""
    if (origin := getattr(problem, "origin", None)) is not None:
        return repr(origin)
    if id(problem) not in _problems:
        _problems[id(problem)] = problem, f"{_PROCESS}-{next(_numbers)}"
    return _problems[id(problem)][1]


def _sent(what: str, value: Any) -> list[Any]:
    """A reference to something in the object store."""
    import ray

    try:
        return [ray.put(value)]
    except Exception as error:
        hint = "; save it as a store, which workers open by its path" if what == "population" else ""
        first = str(error).strip().partition("\n")[0]
        raise ConfigError(f"ray: the {what} cannot be sent to workers: {first}{hint}") from error
