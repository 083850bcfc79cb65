"""When a model is evaluated, on what, and who is told of single clients."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fedmime as fm
from engine.setting import PROBLEM, a, columns, model
from fedmime.engine.backends.specification import Needs, Reference
from fedmime.engine.evaluation_schedule import EvaluationSchedule
from fedmime.engine.intake import Intake

RNG = np.random.default_rng(0)
CLIENTS = {f"c{i}": columns(RNG, 3 + i) for i in range(3)}
HELD_OUT = fm.data.from_arrays({f"c{i}": columns(RNG, 2) for i in range(3)})
BACKEND = Reference().start(PROBLEM, model(), Needs(Intake(PROBLEM.check), drift=False))


def _population(test: bool, each: bool) -> Any:
    clients = fm.data.from_arrays(CLIENTS)
    return SimpleNamespace(
        sizes=clients.sizes,
        client_at=clients.client_at,
        test=columns(RNG, 4) if test else None,
        test_clients=HELD_OUT if each else None,
    )


def _measured(schedule: EvaluationSchedule, done: int, last: bool, **has: bool) -> tuple[set[str], list[Any]]:
    """The metrics after a round, and what was told of single clients."""
    told: list[Any] = []
    state = a.fedavg(0.1).init(model())._replace(round=done)
    population = _population(has.get("test", True), has.get("each", True))
    found = schedule.measure(BACKEND, population, state, last, lambda *given: told.append(given))
    return {name.split("_")[0] for name in found}, told


@pytest.mark.parametrize(
    ("schedule", "done", "last", "expected"),
    [
        (EvaluationSchedule(2, None), 1, False, set()),
        (EvaluationSchedule(2, None), 2, False, {"test"}),
        (EvaluationSchedule(2, None), 3, True, {"test"}),  # the last round is always evaluated
        (EvaluationSchedule(2, None, train=True), 4, False, {"test", "train"}),
        (EvaluationSchedule(5, 3), 3, False, {"client"}),
        (EvaluationSchedule(5, 0), 3, False, set()),  # clients after the last round only
        (EvaluationSchedule(5, 0), 3, True, {"test", "client"}),
    ],
)
def test_what_is_measured_when(schedule: EvaluationSchedule, done: int, last: bool, expected: set[str]) -> None:
    assert _measured(schedule, done, last)[0] == expected


def test_what_a_population_does_not_have_is_not_measured() -> None:
    both = EvaluationSchedule(1, 1)
    assert _measured(both, 1, True, test=False)[0] == {"client"}
    assert _measured(both, 1, True, each=False)[0] == {"test"}
    assert _measured(both, 1, True, test=False, each=False) == (set(), [])
    assert _measured(EvaluationSchedule(1, None, train=True), 1, False, test=False)[0] == {"train"}


def test_single_clients_are_told_by_round_and_name() -> None:
    _, told = _measured(EvaluationSchedule(9, 2), 4, False)
    (number, ids, values, sizes) = told[0]
    assert (number, ids, sizes.tolist()) == (3, ["c0", "c1", "c2"], [2, 2, 2])
    assert all(len(each) == 3 for each in values.values())


@pytest.mark.parametrize(("every", "clients"), [(0, None), (1, -1), (1.5, None)])
def test_wrong_numbers_are_refused(every: Any, clients: Any) -> None:
    with pytest.raises(fm.ConfigError, match=r"evaluate_every|clients_every"):
        EvaluationSchedule(every, clients)
