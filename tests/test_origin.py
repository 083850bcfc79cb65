"""Problems and populations that are made again elsewhere, by the name of a function."""

from __future__ import annotations

import dataclasses
import pickle

import pytest

import fedmime as fm
from fedmime.origin import Origin


def test_a_named_problem_is_pickled_as_a_call() -> None:
    problem = fm.backends.by_name("fedmime.models:mlp", (4, 4), 3, (5,))
    assert problem == fm.models.mlp((4, 4), 3, (5,))  # so that compiled programs serve both
    assert problem.origin == Origin("fedmime.models:mlp", ((4, 4), 3, (5,)))
    sent = pickle.dumps(problem)
    assert len(sent) < 200
    again = pickle.loads(sent)
    assert again == problem
    assert again.origin == problem.origin


def test_a_changed_problem_has_another_origin() -> None:
    """Otherwise a worker would make the unchanged one."""
    problem = fm.backends.by_name("fedmime.models:logistic", (4, 4), 3)
    assert dataclasses.replace(problem, chunk=7).origin is None
    assert fm.models.ridge(problem, 0.1).origin is None


def test_a_named_population_in_memory_travels_as_arrays() -> None:
    digits = fm.backends.by_name("fedmime.data:digits", 5)
    assert pickle.loads(pickle.dumps(digits)).identity() == digits.identity()
    assert digits.portable().origin is None
    assert digits.portable().identity() == digits.identity()


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("fedmime.models", "by_name: function must be 'module:name', got 'fedmime.models'"),
        (":mlp", "by_name: function must be 'module:name', got ':mlp'"),
        ("fedmime.models:mpl", "by_name: 'fedmime.models:mpl' cannot be imported: .*mpl"),
        ("no_such_module:mlp", "by_name: 'no_such_module:mlp' cannot be imported: No module"),
        ("fedmime.optimizers:sgd", "by_name: 'fedmime.optimizers:sgd' must return a problem or a population, got "),
    ],
)
def test_what_cannot_be_made_is_refused(function: str, words: str) -> None:
    with pytest.raises(fm.ConfigError, match=words):
        fm.backends.by_name(function)
