"""Cohorts of explicit mini-batches: what the masks, the other half and the ids make of them."""

import numpy as np
import pytest

from fedmime.engine.cohort import Cohort
from fedmime.engine.explicit import explicit_cohort
from fedmime.errors import ConfigError, DataError


def _cohort(batches, mask=None, weights=None, full=None, gradient_weights=None, ids=None, population=None) -> Cohort:
    return explicit_cohort(batches, mask, weights, full, gradient_weights, ids, population)


def _batches(cohort: Cohort, place: int = 0) -> list[list[float]]:
    """The real examples of each mini-batch of a member."""
    z, (rows, counts) = cohort.source.examples(place)["z"], cohort.source.batches(place)
    assert rows.max() < len(z)
    return [z[batch[:n]].tolist() for batch, n in zip(rows, counts, strict=True)]


Z = np.arange(6.0).reshape(3, 2)


def test_mini_batches_come_back_as_given() -> None:
    cohort = _cohort([{"z": Z}, {"z": Z[:1] + 10}])
    assert (_batches(cohort), _batches(cohort, 1)) == (Z.tolist(), [[10.0, 11.0]])
    assert [(m.client, m.size, m.steps, m.before, m.sends_gradient) for m in cohort.members] == [
        (0, 6, 3, 0, True),
        (1, 2, 1, 3, True),
    ]
    assert (cohort.population, cohort.each_once, cohort.explicit) == (2, True, True)


def test_masked_examples_are_nowhere() -> None:
    """A mini-batch without a real example is no step, and what is masked is not among the client's examples."""
    cohort = _cohort([{"z": Z}], [[[False, True], [False, False], [True, True]]])
    assert _batches(cohort) == [[1.0], [4.0, 5.0]]
    assert cohort.source.examples(0)["z"].tolist() == [1.0, 4.0, 5.0]
    assert (cohort.members[0].size, cohort.members[0].steps, cohort.each_once) == (3, 2, True)


def test_full_data_of_the_same_clients_says_how_many_examples_they_have() -> None:
    cohort = _cohort([{"z": Z}], full=[{"z": np.arange(10.0)}], ids=[7])
    training, probing = cohort.members
    assert (training.client, training.size, training.sends_gradient) == (7, 10, False)
    assert (probing.client, probing.size, probing.steps, probing.sends_gradient) == (7, 10, 0, True)


def test_full_data_of_others_makes_members_of_their_own() -> None:
    cohort = _cohort([{"z": Z}], full=[{"z": np.zeros(2)}, {"z": np.zeros(5)}], ids=[7])
    assert [m.size for m in cohort.training] == [6]
    assert [m.size for m in cohort.probing] == [2, 5]


def test_ids_are_positions_in_the_population() -> None:
    cohort = _cohort([{"z": Z}] * 2, ids=[8, 3])
    assert [m.client for m in cohort.members] == [8, 3]
    assert cohort.population == 9
    assert _cohort([{"z": Z}], ids=[8], population=50).population == 50


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"batches": []}, DataError, "the cohort is empty"),
        ({"batches": 3}, DataError, "batches must be a list with an entry per client"),
        ({"batches": [{}]}, DataError, "client 0 has no fields"),
        ({"batches": [[1]]}, DataError, r"client 0 must be a dict \{field: array\}, got list"),
        ({"batches": [{"z": [["a"]]}]}, DataError, "'z' of client 0 must be an array of numbers"),
        ({"batches": [{"z": Z, "y": Z[:1]}]}, DataError, r"client 0 needs arrays \[steps, batch, ...\] of one length"),
        ({"batches": [{"z": Z[:, :0]}]}, DataError, "client 0 needs arrays"),
        ({"batches": [{"z": Z}, {"z": Z.astype(np.float32)}]}, DataError, "entry 1 has fields"),
        ({"mask": [np.ones((2, 2))]}, DataError, r"mask of client 0 must have shape \(3, 2\), got \(2, 2\)"),
        ({"mask": [np.zeros((3, 2))]}, DataError, "client 0 has no examples: its mask is false everywhere"),
        ({"mask": [np.full((3, 2), 0.5)]}, DataError, "must be true or false everywhere, got .*0.5"),
        ({"mask": []}, DataError, r"mask must have one entry per client \(1\), got 0"),
        ({"full": []}, DataError, "full must have at least one client"),
        ({"full": [{"z": np.zeros(0)}]}, DataError, r"full\[0\] has no examples"),
        ({"weights": [1.0, 2.0]}, DataError, r"weights must have one number per client \(1\), got shape \(2,\)"),
        ({"weights": [-1.0]}, DataError, "weights must be finite, not negative and not all zero"),
        ({"gradient_weights": [0.0]}, DataError, "gradient_weights must be finite, not negative and not all zero"),
        ({"ids": [0, 0], "batches": [{"z": Z}] * 2}, ConfigError, "ids must be 2 different positions"),
        ({"ids": [-1]}, ConfigError, "ids must be 1 different positions"),
        ({"ids": [2**31]}, ConfigError, "ids must be 1 different positions"),
        ({"ids": [4], "population": 4}, ConfigError, "population must be a whole number of at least 5, got 4"),
    ],
)
def test_what_makes_no_cohort_is_refused(changes: dict, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=f"^from_batches: .*{words}"):
        _cohort(**{"batches": [{"z": Z}]} | changes)
