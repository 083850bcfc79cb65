"""The facts that identify a run: what changes a number changes them, and nothing else does."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest

from engine.setting import PROBLEM, a, falling, model, o, population
from fedmime.engine.sampling import Schedule
from fedmime.runs import identity

SCHEDULE = Schedule(2, 4, 1, None, 0, "examples")
CLIENTS = population([3, 4, 5])


def test_a_recipe_is_described_by_its_fields() -> None:
    found = identity.describe(a.mime(o.momentum(0.5), 0.1))
    assert (found["kind"], found["eta"], found["base"]["beta"]) == ("Mime", 0.1, 0.5)


@pytest.mark.parametrize(
    ("value", "plain"),
    [(np.float32(0.5), 0.5), (jnp.asarray(3), 3), ((1, [None]), [1, [None]]), ({1: True}, {"1": True}), (1j, "1j")],
)
def test_values_are_described_as_json_can_write_them(value: object, plain: object) -> None:
    found = identity.describe(value)
    assert found == plain
    assert json.loads(json.dumps(found)) == plain


def test_schedules_are_described_by_their_values() -> None:
    one, same, other = (identity.describe(falling(start)) for start in (0.1, 0.1, 0.2))
    assert one == same != other
    assert one["values"][:2] == [0.1, 0.05]


def test_a_function_that_is_no_schedule_has_no_values() -> None:
    assert identity.describe(lambda one, other: one)["values"] is None


def test_shapes_are_named_by_place() -> None:
    tree = {"dense0": {"w": np.zeros((2, 3), np.float32)}, "b": np.zeros(())}
    assert identity.shapes(tree) == {"b": "float64[]", "dense0.w": "float32[2, 3]"}


def test_a_digest_does_not_depend_on_the_order_of_keys() -> None:
    one, same, other = identity.digest({"a": 1, "b": 2}), identity.digest({"b": 2, "a": 1}), identity.digest({"a": 1})
    assert one == same != other
    assert len(one) == 64


def test_a_digest_of_arrays_sees_content_shape_and_type() -> None:
    array = np.arange(6.0)
    others = [array + 1, array.reshape(2, 3), array.astype(np.float32), array.view(np.int64)]
    found = {identity.digest_arrays([changed]) for changed in (array, *others)}
    assert len(found) == 5
    assert identity.digest_arrays([array[::-1]]) == identity.digest_arrays([array[::-1].copy()])


def test_differences_name_the_field() -> None:
    ours = {"a": {"b": 1, "c": [2]}, "new": True}
    theirs = {"a": {"b": 1, "c": [3]}, "old": False}
    assert identity.differences(ours, ours) == []
    assert identity.differences(ours, theirs) == ["a.c.0: 3 -> 2", "old: False -> None", "new: None -> True"]


def _facts(eta=0.1, problem=PROBLEM, clients=CLIENTS, schedule=SCHEDULE, initial=None) -> dict:
    algorithm = a.fedavg(eta)
    return identity.facts(algorithm, problem, clients, schedule, algorithm.init(model()), initial)


def test_whatever_changes_a_number_changes_the_facts() -> None:
    others = [
        _facts(eta=0.2),
        _facts(problem=dataclasses.replace(PROBLEM, name="other")),
        _facts(clients=population([3, 4, 5], seed=1)),
        _facts(schedule=dataclasses.replace(SCHEDULE, seed=1)),
        _facts(initial=model()),
        _facts(initial=model(1)),
    ]
    assert len({identity.digest(facts) for facts in (_facts(), *others)}) == 7
    assert identity.digest(_facts(clients=population([3, 4, 5]))) == identity.digest(_facts())


def test_data_is_described_by_its_sizes() -> None:
    found = identity.data(CLIENTS)
    assert (found["clients"], found["examples"], found["test_examples"]) == (3, 12, 11)
    assert len(found["sha256"]) == 64


def test_a_population_of_a_users_own_needs_no_name() -> None:
    class Mine:
        sizes, test = np.array([2, 0, 3]), None

    assert identity.data(Mine()) == {"name": "Mine", "sha256": None, "clients": 3, "examples": 5, "test_examples": 0}
