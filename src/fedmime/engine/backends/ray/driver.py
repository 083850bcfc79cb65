"""The driver's half of the back end on Ray: it splits rounds, sends parts to workers and adds up their answers."""

from __future__ import annotations

import functools
import itertools
import uuid
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from fedmime.algorithms.algorithm import Message
from fedmime.engine.backends.backend import Answer, Problem, Simulated, Work
from fedmime.engine.backends.local.dispatch import LocalBackend, check_kept
from fedmime.engine.backends.ray import crew
from fedmime.engine.backends.ray.parts import Part, added, plain, split
from fedmime.engine.backends.ray.worker import Ask, Task, identity
from fedmime.engine.backends.specification import Needs
from fedmime.engine.cohort import Cohort
from fedmime.engine.intake import Intake
from fedmime.engine.memory import ClientMemory
from fedmime.errors import ConfigError
from fedmime.vector import Vector

_PROCESS = uuid.uuid4().hex  # workers may outlive a driver, so names of runs and problems belong to one
_numbers = itertools.count()


class _Round:
    """A round's parts, and where they were computed."""

    def __init__(self, cohort: Cohort, parts: Mapping[int, Part]) -> None:
        import ray

        self.id, self.cohort, self.parts = next(_numbers), cohort, parts
        self.refs = {number: [ray.put(part)] for number, part in parts.items()}
        self.points: list[Any] | None = None  # a reference to those of phase 1
        self.placed: dict[int, crew.Seat] = {}
        self.new: dict[int, Any] = {}  # what clients keep if the server accepts the round


class RayBackend(Simulated):
    """Clients in parts, one for each worker that was asked for. Workers are started when the first round needs them.

    Args:
        problem: what clients train.
        model: the model, or its shapes.
        needs: what the run needs.
        options: how workers are started.
    """

    def __init__(self, problem: Problem, model: Any, needs: Needs, options: crew.Options) -> None:
        self.memory: ClientMemory | None = None
        self.problem, self._model, self._needs, self._options = problem, model, needs, options
        self._intake = needs.intake or Intake(problem.check)
        self._population = None if needs.expected is None else needs.expected.population
        self._run, self._crew = f"{_PROCESS}-{next(_numbers)}", None
        self._rounds: dict[int, _Round] = {}  # by round: the current one, and the next

    def prepare(self, work: Work) -> None:
        """See `Backend.prepare`. Workers lay their parts out when they have finished the current round's."""
        workers, current = self._workers(), self._round(work)
        for number, ref in current.refs.items():
            workers.hint(
                number,
                lambda actor, number=number, ref=ref: actor.prepare.remote(self._run, number, current.id, ref),
            )

    def ask(
        self, work: Work, points: tuple[Vector, ...] = (), message: Message | None = None, bound: Any = np.inf
    ) -> Answer:
        """See `Backend.ask`."""
        import ray

        check_kept(work, self._model)
        workers, current = self._workers(), self._round(work)
        before, sent = current.points, None
        if points:
            current.points = [ray.put(plain(points))]
        if message is not None:
            sent = [ray.put(plain(message))]
        asked = current.points if points else None
        ask = Ask(plain(work.aggregator), plain(bound), asked, sent, None if points else before, None)

        def call(part: Part, actor: Any) -> Any:
            kept = None
            if self.memory is not None and message is not None:
                kept = plain(self.memory.read(part.training))
            given = (self._run, part.number, current.id, current.refs[part.number], ask._replace(kept=kept))
            return actor.ask.remote(*given)

        calls = {number: functools.partial(call, part) for number, part in current.parts.items()}
        found = workers.run(calls, current.placed)
        answers = [found[number] for number in sorted(found)]
        for answer in answers:
            current.new |= answer.new
            self._intake.repeat(answer.findings)
        return added(answers, work.cohort)

    def settle(self, work: Work, accepted: bool) -> None:
        """See `Backend.settle`."""
        current = self._rounds.pop(work.round, None)
        if current is not None and self.memory is not None and accepted:
            self.memory = self.memory.write(list(current.new), list(current.new.values()))

    def metrics(self, params: Any, batch: Mapping[str, np.ndarray]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """See `Backend.metrics`. The server's data is here, and so are its evaluations."""
        return self._here.metrics(params, batch)

    def close(self) -> None:
        """See `Backend.close`."""
        workers, self._crew, self._rounds = self._crew, None, {}
        if workers is not None:
            workers.end(self._run)
            crew.release(self._options, self)

    @functools.cached_property
    def _here(self) -> LocalBackend:
        return LocalBackend(self.problem, self._model, None, self._intake, self._needs.drift)

    def _round(self, work: Work) -> _Round:
        """The parts of a round, split once."""
        current = self._rounds.get(work.round)
        if current is None or current.cohort is not work.cohort:
            parts = split(work, self._options.workers, self._population)
            current = self._rounds[work.round] = _Round(work.cohort, parts)
            for old in sorted(self._rounds)[:-2]:
                del self._rounds[old]
        return current

    def _workers(self) -> crew.Crew:
        """The workers, which know the run."""
        if self._crew is None:
            self._crew = crew.take(self._options, self)
            try:
                self._crew.begin(self._run, self._task(), identity(self._population))
            except BaseException:
                self.close()
                raise
        return self._crew

    def _task(self) -> Task:
        needs, expected, population = self._needs, self._needs.expected, self._population
        shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(np.shape(a), a.dtype), self._model)
        size = 0 if expected is None else -(-expected.cohort_size // self._options.workers)
        portable = None
        if population is not None:
            portable = _sent("population", getattr(population, "portable", lambda: population)())
        return Task(
            _sent("problem", self.problem),
            _name(self.problem),
            shapes,
            portable,
            needs.drift,
            self._intake.once,
            size,
            None if expected is None else expected.steps,
        )


_problems: dict[int, tuple[Problem, str]] = {}  # by identity; a problem is held, so that its identity stays its own


def _name(problem: Problem) -> str:
    """What workers call a problem: the same object has the same name."""
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
