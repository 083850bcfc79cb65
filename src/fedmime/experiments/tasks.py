"""Tasks: a data set, a model and the paper's settings for both, by name."""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from fedmime.errors import ConfigError

if TYPE_CHECKING:
    from fedmime.data import Population
    from fedmime.models import Problem

DataDir = str | os.PathLike[str] | None


@dataclasses.dataclass(frozen=True)
class Task:
    """What to learn and from whom; the settings are the paper's and serve as defaults."""

    name: str
    dataset: str
    about: str
    problem: Callable[[], Problem]
    population: Callable[[DataDir], Population]
    embedded: bool  # whether its data comes with the package
    rounds: int = 1000
    cohort: int = 20
    batch_size: int = 10
    epochs: int = 1
    eta: float = 0.1  # a rate at which plain SGD learns; sweeps find better ones
    budget: float = 40.0  # model-sizes a round in the comparison under equal communication
    target: float | None = None  # the accuracy that "rounds to target" asks for
    target_gap: float | None = None  # or how close to its optimum the training loss has to come
    optimum: float | None = None  # of the training loss, where it is known


def _handwriting(data_dir: DataDir) -> Population:
    from fedmime import data

    return data.handwriting()


def _digits(data_dir: DataDir) -> Population:
    from fedmime import data

    return data.digits(clients=50, alpha=0.1, seed=0)


def _two_labels(data_dir: DataDir) -> Population:
    from fedmime import data

    return data.digits(clients=50, labels_per_client=2, seed=0)


def _annotators(data_dir: DataDir) -> Population:
    from fedmime import data

    return data.annotators(seed=0)


def _emnist(data_dir: DataDir) -> Population:
    from fedmime import data

    return data.emnist(data_dir)


def _shakespeare(data_dir: DataDir) -> Population:
    from fedmime import data

    return data.shakespeare(data_dir)


def _stackoverflow(data_dir: DataDir) -> Population:
    from fedmime import data

    return data.stackoverflow(data_dir)


def _image_model(name: str, **sizes: object) -> Callable[[], Problem]:
    def build() -> Problem:
        from fedmime import models

        return getattr(models, name)(**sizes)

    return build


_DIGITS = {"input_shape": (8, 8, 1), "classes": 10}


def _digits_ridge() -> Problem:
    from fedmime import models

    return models.ridge(models.logistic(**_DIGITS), 1e-4)


def _char_lstm() -> Problem:
    from fedmime import models
    from fedmime.data.shakespeare import LEFT_OUT, VOCABULARY_SIZE

    return models.char_lstm(vocabulary=VOCABULARY_SIZE, ignore=LEFT_OUT)


def _word_lstm() -> Problem:
    from fedmime import models
    from fedmime.data.stackoverflow import left_out

    return models.word_lstm(ignore=left_out())


_MODELS = {
    "logistic": ("logistic regression", 0.1),
    "mlp": ("perceptron with layers of 300 and 100", 0.1),
    "cnn": ("convolutional network with dropout", 0.03),
}


def _images(dataset: str, about: str, embedded: bool, target: dict[str, float]) -> list[Task]:
    """The three image models on one data set of 62 characters."""
    population = _handwriting if embedded else _emnist
    return [
        Task(
            f"{dataset}-{model}",
            dataset,
            f"{what} on {about}",
            _image_model(model),
            population,
            embedded,
            eta=eta,
            target=target.get(model),
        )
        for model, (what, eta) in _MODELS.items()
    ]


TASKS = {
    task.name: task
    for task in [
        *_images("handwriting", "generated handwriting by writer", True, {"logistic": 0.6, "mlp": 0.7, "cnn": 0.8}),
        Task(
            "digits-logistic",
            "digits",
            "logistic regression on scanned digits with label skew",
            _image_model("logistic", **_DIGITS),
            _digits,
            True,
            rounds=100,
            cohort=10,
            target=0.85,
        ),
        Task(
            "digits-two-labels",
            "digits",
            "logistic regression on scanned digits, two labels a client",
            _image_model("logistic", **_DIGITS),
            _two_labels,
            True,
            rounds=150,
            target=0.96,
        ),
        Task(
            "annotators",
            "annotators",
            "logistic regression with a ridge on scanned digits that ten annotators mislabel, each in their own way",
            _digits_ridge,
            _annotators,
            True,
            rounds=400,
            cohort=10,
            target_gap=1e-3,
            # What `fedmime train --task annotators --algorithm server_only --eta 31.6 --rounds 2000` ends at.
            optimum=0.8008761,
        ),
        *_images("emnist", "EMNIST by writer", False, {"logistic": 0.6, "mlp": 0.7, "cnn": 0.8}),
        Task(
            "shakespeare",
            "shakespeare",
            "next character by an LSTM of 256, on Shakespeare by role",
            _char_lstm,
            _shakespeare,
            False,
            eta=1.0,
            target=0.5,
        ),
        Task(
            "stackoverflow",
            "stackoverflow",
            "next word by an LSTM of 670, on Stack Overflow by user",
            _word_lstm,
            _stackoverflow,
            False,
            cohort=50,
            eta=1.0,
            budget=100.0,
            target=0.2,
        ),
    ]
}


def get(name: str) -> Task:
    """The task of a name."""
    if name not in TASKS:
        close = difflib.get_close_matches(str(name), TASKS, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"accepted are {', '.join(TASKS)}"
        raise ConfigError(f"task: there is no {name!r}; {hint}")
    return TASKS[name]


def problem(name: str) -> Problem:
    """The problem of a task. Workers call this, too, by its name."""
    return get(name).problem()


def population(name: str, data_dir: str | None) -> Population:
    """The population of a task. Workers call this, too, by its name."""
    return get(name).population(data_dir)
