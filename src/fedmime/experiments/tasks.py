"""Tasks by name: the built-in ones with the paper's settings, a user's own, and a built-in model on a user's store."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from fedmime import named
from fedmime.errors import ConfigError
from fedmime.experiments import stores
from fedmime.experiments.task import DataDir, Task

if TYPE_CHECKING:
    from fedmime.data import Population
    from fedmime.models import Problem


def _data(name: str, **options: object) -> Callable[[], Population]:
    def build() -> Population:
        from fedmime import data

        return getattr(data, name)(**options)

    return build


def _published(name: str, **options: object) -> Callable[..., Population]:
    def build(data_dir: DataDir) -> Population:
        from fedmime import data

        return getattr(data, name)(data_dir, **options)

    return build


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


def _word_lstm(words: int) -> Callable[[], Problem]:
    def build() -> Problem:
        from fedmime import models
        from fedmime.data.stackoverflow import left_out
        from fedmime.data.tokens import size

        return models.word_lstm(vocabulary=size(words), ignore=left_out(words))

    return build


def _stackoverflow(name: str, words: int) -> Task:
    """The next word out of so many; every other word counts as unknown."""
    return Task(
        name,
        _word_lstm(words),
        _published("stackoverflow", vocabulary=words),
        about=f"next of {words:,} words by an LSTM of 670, on Stack Overflow by user",
        cohort=50,
        eta=1.0,
        budget=100.0,
        target=0.2,
        published=True,
    )


_MODELS = {
    "logistic": ("logistic regression", 0.1),
    "mlp": ("perceptron with layers of 300 and 100", 0.1),
    "cnn": ("convolutional network with dropout", 0.03),
}


def _images(dataset: str, about: str, population: Callable[..., Population], target: dict[str, float]) -> list[Task]:
    """The three image models on one data set of 62 characters."""
    return [
        Task(
            f"{dataset}-{model}",
            _image_model(model),
            population,
            about=f"{what} on {about}",
            eta=eta,
            target=target.get(model),
            published=dataset == "emnist",
        )
        for model, (what, eta) in _MODELS.items()
    ]


TASKS = {
    task.name: task
    for task in [
        *_images(
            "handwriting",
            "generated handwriting by writer",
            _data("handwriting"),
            {"logistic": 0.6, "mlp": 0.7, "cnn": 0.8},
        ),
        Task(
            "digits-logistic",
            _image_model("logistic", **_DIGITS),
            _data("digits", clients=50, alpha=0.1, seed=0),
            about="logistic regression on scanned digits with label skew",
            rounds=100,
            cohort=10,
            target=0.85,
        ),
        Task(
            "digits-two-labels",
            _image_model("logistic", **_DIGITS),
            _data("digits", clients=50, labels_per_client=2, seed=0),
            about="logistic regression on scanned digits, two labels a client",
            rounds=150,
            target=0.96,
        ),
        Task(
            "annotators",
            _digits_ridge,
            _data("annotators", seed=0),
            about="logistic regression with a ridge on scanned digits that ten annotators mislabel, each differently",
            rounds=400,
            cohort=10,
            target_gap=1e-3,
            # What `fedmime train --task annotators --algorithm server_only --eta 31.6 --rounds 2000` ends at.
            optimum=0.8008761,
        ),
        *_images("emnist", "EMNIST by writer", _published("emnist"), {"logistic": 0.6, "mlp": 0.7, "cnn": 0.8}),
        Task(
            "shakespeare",
            _char_lstm,
            _published("shakespeare"),
            about="next character by an LSTM of 256, on Shakespeare by role",
            eta=1.0,
            target=0.5,
            published=True,
        ),
        _stackoverflow("stackoverflow", 10_000),  # as in the prior work whose preprocessing the paper follows
        _stackoverflow("stackoverflow-1000", 1_000),  # as the paper prints
    ]
}


def get(name: str) -> Task:
    """The task of a name: one of `TASKS`, `module:name` or `file.py:name` of the user's own, or `model@store`."""
    if name in TASKS:
        return TASKS[name]
    if stores.is_model_on_store(name):
        return stores.task(name)
    if named.is_named(name):
        return _own(named.absolute(name))
    close = difflib.get_close_matches(str(name), TASKS, 1)
    hint = f"did you mean {close[0]!r}?" if close else f"accepted are {', '.join(TASKS)}, and {named.FORMS}"
    raise ConfigError(f"task: there is no {name!r}; {hint}")


@functools.lru_cache(maxsize=8)
def _own(name: str) -> Task:
    """The user's own task, made once a process."""
    found = named.load("task", name, near=TASKS)
    if callable(found) and not isinstance(found, type):
        with named.blaming("task", name):
            found = found()
    if not isinstance(found, Task):
        kind = f"{type(found).__name__} {found!r:.80}"
        raise ConfigError(
            f"task: {name!r} must be an fm.Task, or a function without arguments that makes one, got {kind}"
        )
    return found


@functools.lru_cache(maxsize=8)
def problem(name: str) -> Problem:
    """The problem of a task, made once a process, so that compiled programs are used again. Workers call this, too."""
    task = get(name)
    with named.blaming("task", name):
        return task.model()


def population(name: str, data_dir: DataDir = None) -> Population:
    """The population of a task. Workers call this, too, by its name."""
    task = get(name)
    with named.blaming("task", name):
        return task.clients(data_dir)
