"""A cohort: who is in it, how much each member counts, and the same data in the hands of one client."""

import numpy as np
import pytest

from fedmime.engine.cohort import Batches, Cohort, Member, client_id, given, pad_rows, with_starts
from fedmime.errors import DataError


def _entry(client: int, first: int, rows: list[list[int]], sends_gradient: bool = True):
    """A client whose examples are consecutive numbers, with mini-batches that are all full."""
    n = max(max(batch) for batch in rows) + 1
    batches = Batches(np.array(rows), np.array([len(batch) for batch in rows]))
    return Member(client, n, len(rows), 0, sends_gradient), {"z": first + np.arange(n)}, batches


TWO = given([_entry(4, 0, [[0, 1], [2, 3]]), _entry(1, 10, [[1], [0]])], 9)
ASKED = (Member(7, 6, 0, 0, True), {"z": np.arange(20, 26)}, None)


def test_members_know_the_steps_before_them() -> None:
    members = with_starts([Member(i, 1, steps, 99, True) for i, steps in enumerate((3, 0, 2))])
    assert [m.before for m in members] == [0, 3, 3]
    assert [m.before for m in TWO.members] == [0, 2]


def test_a_cohort_counts_its_members() -> None:
    cohort = given([_entry(4, 0, [[0, 1], [2, 3]], sends_gradient=False), ASKED], 9)
    assert ([m.client for m in cohort.training], [m.client for m in cohort.probing]) == ([4], [7])
    assert (cohort.steps, cohort.examples, cohort.batch_size) == (2, 10, 2)


@pytest.mark.parametrize(
    ("rows", "once"), [([[0, 1], [2, 3]], True), ([[0, 1], [1, 2]], False), ([[0, 1], [0, 1]], False)]
)
def test_it_is_seen_whether_each_example_occurs_once(rows: list[list[int]], once: bool) -> None:
    assert given([_entry(0, 0, rows)], 1).each_once is once


def test_members_weigh_by_their_examples() -> None:
    updates, gradients = TWO.shares(split=False)
    np.testing.assert_allclose(updates, [4 / 6, 2 / 6])
    np.testing.assert_allclose(gradients, updates)


def test_halves_weigh_on_their_own_side() -> None:
    cohort = given([_entry(4, 0, [[0, 1], [2, 3]], False), _entry(1, 10, [[1], [0]], False), ASKED], 9)
    updates, gradients = cohort.shares(split=True)
    np.testing.assert_allclose(updates, [4 / 6, 2 / 6, 0])
    np.testing.assert_allclose(gradients, [0, 0, 1])


@pytest.mark.parametrize(
    ("given_weights", "expected"),
    [
        ({"weights": [1.0, 3.0]}, ([0.25, 0.75], [0.25, 0.75])),
        ({"weights": [1.0, 3.0], "gradient_weights": [1.0, 0.0]}, ([0.25, 0.75], [1, 0])),
        ({"gradient_weights": [1.0, 1.0]}, ([0.5, 0.5], [0.5, 0.5])),
    ],
)
def test_weights_that_are_given_count(given_weights: dict, expected: tuple) -> None:
    cohort = Cohort.from_batches([{"z": np.zeros((1, 2))}] * 2, **given_weights)
    for found, shares in zip(cohort.shares(split=False), expected, strict=True):
        np.testing.assert_allclose(found, shares)


def test_pooled_data_is_one_clients_in_order() -> None:
    pooled = TWO.pooled()
    trainer, *others = pooled.members
    assert (trainer.size, trainer.steps, trainer.sends_gradient) == (6, 4, False)
    assert [(m.client, m.steps, m.sends_gradient) for m in others] == [(4, 0, True), (1, 0, True)]
    z, (rows, counts) = pooled.source.examples(0)["z"], pooled.source.batches(0)
    taken = [z[batch[:n]].tolist() for batch, n in zip(rows, counts, strict=True)]
    assert taken == [[0, 1], [2, 3], [11], [10]]


def test_pooled_data_leaves_members_out() -> None:
    pooled = TWO.pooled(without={0})
    assert pooled.source.examples(0)["z"].tolist() == [10, 11]
    assert [m.client for m in pooled.probing] == [1]
    with pytest.raises(DataError, match="no client that trains; give at least one"):
        TWO.pooled(without={0, 1})


def test_padding_repeats_the_first_row() -> None:
    rows = np.array([[3, 1], [2, 0]])
    assert pad_rows(rows, 4).tolist() == [[3, 1, 3, 3], [2, 0, 2, 2]]
    assert pad_rows(rows, 2) is rows


def test_clients_are_called_by_name_or_position() -> None:
    assert client_id(None, 3) == 3
    assert client_id(["a", "b"], 1) == "b"
    assert TWO.client_id(4) == 4
