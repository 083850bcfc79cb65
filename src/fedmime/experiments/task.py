"""A task: what to learn and from whom, with the numbers that suit both. Your own are defined as built-in ones are."""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fedmime.errors import ConfigError
from fedmime.validation import CLOSED_UNIT, POSITIVE, count, flag, function, quote, real

if TYPE_CHECKING:
    from fedmime.data import Population
    from fedmime.models import Problem

DataDir = str | os.PathLike[str] | None


@dataclasses.dataclass(frozen=True)
class Task:
    """What to learn and from whom, by functions, and the numbers that a run of it has unless told otherwise.

    The command line finds a task by its name: `fedmime train --task my_module:my_task`, or `--task my_file.py:my_task`,
    where `my_task` is a `Task` or a function without arguments that returns one. Other processes, such as workers of a
    sweep or of Ray, find it in the same way and call the same functions, which therefore must give the same model and
    the same data whenever they are called.

    Args:
        name: for messages, titles and the names of directories.
        problem: makes the model, from `fm.models`.
        population: opens the clients' data, from `fm.data`. It is called with `data_dir` if it has such a parameter.
        about: the task in a line.
        rounds: of a run.
        cohort: clients a round.
        batch_size: examples of a local step.
        epochs: local passes over a client's data.
        eta: a rate at which plain SGD learns; sweeps find better ones.
        budget: model-sizes a client exchanges in a round, in comparisons under equal communication.
        target: the test accuracy that "rounds to target" asks for.
        target_gap: or how close to its optimum the training loss has to come.
        optimum: of the training loss, where it is known.
        published: whether the data are published files, which `fedmime data fetch` brings.

    >>> import fedmime as fm
    >>> digits = fm.Task("digits", lambda: fm.models.logistic((8, 8, 1), 10), lambda: fm.data.digits(), cohort=5)
    >>> digits.rounds
    1000
    """

    name: str
    problem: Callable[[], Problem]
    population: Callable[..., Population]
    _: dataclasses.KW_ONLY
    about: str = ""
    rounds: int = 1000
    cohort: int = 20
    batch_size: int = 10
    epochs: int = 1
    eta: float = 0.1
    budget: float = 40.0
    target: float | None = None
    target_gap: float | None = None
    optimum: float | None = None
    published: bool = False

    def __post_init__(self) -> None:
        for label in ("name", "about"):
            value = getattr(self, label)
            if not isinstance(value, str) or not value.isprintable() or (label == "name" and not value.strip()):
                raise ConfigError(f"task: {label} must be a text of one line, got {quote(value)}")
        for label in ("problem", "population"):
            function("task", label, getattr(self, label))
        for label in ("rounds", "cohort", "batch_size", "epochs"):
            count("task", label, getattr(self, label), least=1)
        real("task", "eta", self.eta, POSITIVE)
        real("task", "budget", self.budget, POSITIVE)
        flag("task", "published", self.published)
        check_target("task", self.target, self.target_gap, self.optimum)
        if self.optimum is not None and not isinstance(self.optimum, int | float):
            raise ConfigError(f"task: optimum must be a number, got {quote(self.optimum)}")

    def model(self) -> Problem:
        """What `problem` makes."""
        from fedmime.models import Problem

        return _of_kind(self.name, "problem", self.problem(), Problem, "fm.models")

    def clients(self, data_dir: DataDir = None) -> Population:
        """What `population` opens, in a directory if it takes one."""
        from fedmime.data import Population

        given = {"data_dir": data_dir} if "data_dir" in inspect.signature(self.population).parameters else {}
        return _of_kind(self.name, "population", self.population(**given), Population, "fm.data")


def _of_kind(task: str, what: str, value: Any, kind: type, home: str) -> Any:
    if not isinstance(value, kind):
        returned = f"got {quote(value)} ({type(value).__name__})"
        raise ConfigError(f"task {task!r}: {what} must return a {kind.__name__} from {home}, {returned}")
    return value


def check_target(owner: str, target: Any, target_gap: Any, optimum: Any) -> None:
    """Refuse a target that is neither an accuracy nor a distance from an optimum that is known.

    Args:
        owner: what has the target, for the message.
        target: an accuracy, or None.
        target_gap: how close to its optimum the training loss has to come, or None.
        optimum: of the training loss, where it is known.
    """
    if target is not None:
        real(owner, "target", target, CLOSED_UNIT)
    if target_gap is None:
        return
    real(owner, "target_gap", target_gap, POSITIVE)
    if target is not None:
        told = f"target={target!r}, target_gap={target_gap!r}"
        raise ConfigError(f"{owner}: give an accuracy as target or a target_gap, not both, got {told}")
    if optimum is None:
        raise ConfigError(f"{owner}: target_gap={target_gap!r} needs the optimum of the training loss")
