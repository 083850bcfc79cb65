"""A cohort in parts: who is in which, what travels, and that sums over parts are sums over the cohort."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedmime as fm
from engine.setting import population
from fedmime.aggregation.gate import Reason
from fedmime.algorithms.abstract import Anchor
from fedmime.engine.backends.backend import ClientMessages, Totals, Work
from fedmime.engine.backends.ray.parts import PartAnswer, Sent, accepted, added, arrived, plain, split
from fedmime.engine.sampling import Schedule
from fedmime.engine.work import work_of
from fedmime.errors import DataError

MIME = fm.algorithms.mime(fm.optimizers.momentum(0.9), 0.05)
SIZES = (5, 9, 14, 3, 7, 8, 2, 11)
CLIENTS = population(SIZES)


def _work(cohort_size: int = 6) -> Work:
    cohort = Schedule(cohort_size, 4, 1, None, 0, "examples").cohort(MIME, CLIENTS, 0)
    return work_of(MIME, Anchor(points=1), 0, cohort, jax.random.key(3))


@pytest.mark.parametrize("parts", [1, 2, 3, 9])
def test_parts_keep_their_shares_of_the_whole(parts: int) -> None:
    work = _work()
    found = split(work, parts, CLIENTS)
    assert [part.number for part in found.values()] == list(found)
    assert all(part.work.cohort.members for part in found.values())  # with more parts than members, some are left out
    members = [member for part in found.values() for member in part.work.cohort.members]
    assert sorted(members) == sorted(work.cohort.members)  # where a member's steps begin in the cohort included
    for shares in ("update_shares", "gradient_shares"):
        assert sum(getattr(part.work, shares).sum() for part in found.values()) == pytest.approx(1.0)
    total = sum(m.steps + m.size / 4 for m in work.cohort.members)
    assert sum(part.cost for part in found.values()) == pytest.approx(total)


def test_a_part_finds_its_clients_in_the_workers_population() -> None:
    work = _work()
    (part,) = split(work, 1, CLIENTS).values()
    assert part.work.cohort.source.population is None  # examples do not travel
    there = arrived(part.work, CLIENTS)
    assert jnp.array_equal(jax.random.key_data(there.key), jax.random.key_data(work.key))
    for place in range(len(work.cohort.members)):
        ours, theirs = work.cohort.source, there.cohort.source
        np.testing.assert_array_equal(ours.examples(place)["x"], theirs.examples(place)["x"])
        np.testing.assert_array_equal(ours.batches(place).rows, theirs.batches(place).rows)


def test_a_part_of_other_clients_takes_its_data_along() -> None:
    """A client whose data cannot be read travels as the error, which the worker's intake looks at."""

    class Failing:
        def examples(self, place: int) -> Any:
            if place == 1:
                raise DataError("unreadable")
            return {"x": np.full((2, 1), place)}

        def batches(self, place: int) -> Any:
            return None

    work = _work()
    work = work._replace(cohort=dataclasses.replace(work.cohort, source=Failing()))
    (part,) = split(work, 1, CLIENTS).values()
    source = part.work.cohort.source
    assert isinstance(source, Sent)
    assert source.examples(2)["x"][0, 0] == 2
    with pytest.raises(DataError, match="unreadable"):
        source.examples(1)


def test_weak_types_travel_as_numbers() -> None:
    sent = plain({"weak": jnp.asarray(2.0), "strong": jnp.ones(2)})
    assert type(sent["weak"]) is float
    assert type(sent["strong"]) is np.ndarray


def _answer(**given: Any) -> PartAnswer:
    blank = {"gradients": (), "share": 0.0, "totals": None, "clients": 0, "refused": {}, "unclipped": 0}
    return PartAnswer(**(blank | {"new": {}, "findings": [], "seconds": 0.0} | given))


def test_answers_are_added_in_the_order_of_the_parts() -> None:
    """Floating-point addition is not associative: 1e16 + 1 + 1 is not 1 + 1 + 1e16."""
    work, values = _work(), (1e16, 1.0, 1.0)
    answers = [_answer(gradients=(np.asarray(v),), share=0.25, clients=2, unclipped=1) for v in values]
    answer = added(answers, work.cohort)
    assert float(answer.gradients[0]) == 1e16 + 1.0 + 1.0 != 1.0 + 1.0 + 1e16
    assert (answer.share, answer.clients, answer.unclipped) == (0.75, 6, 3)
    assert answer.totals is None


def test_parts_in_which_nobody_trained_add_nothing() -> None:
    totals = Totals({"w": np.ones(3)}, (), np.ones(7))
    answer = added([_answer(), _answer(totals=totals), _answer(totals=totals)], _work().cohort)
    assert answer.totals is not None
    np.testing.assert_array_equal(answer.totals.send["w"], 2 * np.ones(3))


def test_refused_clients_are_told_in_the_order_of_the_cohort() -> None:
    cohort = _work().cohort
    first, second = cohort.members[0].client, cohort.members[3].client
    answers = [_answer(refused={second: int(Reason.DATA)}), _answer(refused={first: int(Reason.NORM)})]
    assert list(added(answers, cohort).refused()) == [first, second]


def test_single_messages_are_joined_without_those_refused() -> None:
    """The number of rows does not depend on who was refused, so that the server's program serves every round."""
    messages = accepted(ClientMessages(np.arange(6.0).reshape(3, 2), np.asarray([0.5, 0.0, 0.25])))
    assert messages.values.tolist() == [[0, 1], [4, 5]]
    totals = Totals((), (), np.ones(7), messages)
    cohort = _work().cohort
    answer = added([_answer(totals=totals), _answer(totals=totals)], cohort)
    assert answer.totals is not None
    assert answer.totals.messages is not None
    assert answer.totals.messages.weights.tolist() == [0.5, 0.25, 0.5, 0.25, 0.0, 0.0]
    assert answer.totals.messages.values.shape == (len(cohort.training), 2)
