"""Wrong arguments of a whole run, of a budget, of quadratics and of models."""

import dataclasses

import numpy as np
import pytest

import fedmime as fm
from refusals.refusal import NOT_COUNTS, check, check_all, choices, counts, numbers, wrong

a, o, m = fm.algorithms, fm.optimizers, fm.models
NAN, INF = float("nan"), float("inf")


def _clients(*sizes: int) -> fm.data.Population:
    columns = ({"x": np.zeros((n, 4)), "y": np.zeros(n, np.int64)} for n in sizes)
    return fm.data.from_arrays({f"c{i}": fields for i, fields in enumerate(columns)})


PROBLEM, FOUR = m.logistic((4,), 3), _clients(3, 2, 0, 4, 1)
GOOD = {"algorithm": a.fedavg(0.1), "problem": PROBLEM, "population": FOUR, "rounds": 1, "cohort_size": 2}
SPLIT = a.mime(o.momentum(), 0.1, split=True)


def _run(**changes):
    return lambda: fm.simulate(**GOOD | changes)


RUNS = [
    *(wrong(_run(algorithm=v), "algorithm", v) for v in ("mime", None, a.fedavg)),
    *(wrong(_run(problem=v), "problem", v) for v in ("mlp", None)),
    *(wrong(_run(population=v), "population", v) for v in (None, [], {"x": 3})),
    wrong(_run(population=_clients(0, 0)), "population", "empty", shown="no client"),
    *(
        case
        for name in ("rounds", "cohort_size", "batch_size", "epochs", "steps", "evaluate_every")
        for case in counts("simulate", fm.simulate, name, 1, **GOOD)
    ),
    *(wrong(_run(rounds=v), "rounds", v) for v in (None,)),
    *counts("simulate", fm.simulate, "seed", 0, **GOOD),
    *(wrong(_run(seed=v), "seed", v) for v in (2**64, 2**200, None)),
    *choices("simulate", fm.simulate, "weights", **GOOD),
    wrong(_run(cohort_size=5), "cohort_size", 5),
    wrong(_run(algorithm=SPLIT, cohort_size=3), "cohort_size", 3, "odd split"),
    wrong(_run(epochs=1, steps=4), "steps", 4, "epochs and steps", "epochs=1, steps=4"),
    *(wrong(_run(initial=v), "initial", v, shown="") for v in ({}, {"w": np.zeros(3)}, 3)),
    wrong(_run(initial={"dense0": {"w": np.zeros((5, 3)), "b": np.zeros(3)}}), "initial", (5, 3)),
    wrong(_run(initial={"dense0": {"w": np.zeros((4, 3), int), "b": np.zeros(3)}}), "initial", "integers", shown="int"),
    *(wrong(_run(devices=v), "devices", v) for v in (0, 999, "2")),
    wrong(_run(on_round="print"), "on_round", "print"),
    wrong(_run(run_dir=3), "run_dir", 3),
    *(wrong(_run(**{name: v}), name, v) for name in ("stop", "saving", "gate", "config") for v in (5, 0, [], "no")),
]


def test_runs_are_refused() -> None:
    check_all(RUNS)


def test_schedules_are_checked_in_their_round() -> None:
    check(wrong(_run(algorithm=a.fedavg(lambda t: 0.1 - 0.1 * t), rounds=2), "eta(1)", 0.0))


def test_bad_data_is_refused_in_a_run() -> None:
    bad = fm.data.from_arrays({f"c{i}": {"x": np.zeros((2, 4)), "y": np.full(2, i)} for i in range(4)})
    check(wrong(_run(population=bad, cohort_size=4), "client 'c3'", 3))


PARAMS = {"w": np.zeros((4, 3))}


def test_budgets_are_refused() -> None:
    check_all(
        [
            *(
                wrong(lambda v=v: fm.communication.cohort_for_budget(a.fedavg(0.1), PARAMS, v), "budget", v)
                for v in (0, -1, 1.9, NAN, INF, "40", None, True, [40])
            ),
            *(
                wrong(lambda v=v: fm.communication.cohort_for_budget(v, PARAMS, 40), "algorithm", v)
                for v in ("fedavg", None)
            ),
            *(
                wrong(lambda v=v: fm.communication.cost(a.fedavg(0.1), v), "params", v, "cost.params")
                for v in ({}, None, {"w": np.arange(3)}, 3)
            ),
        ]
    )


SPREADS = ("hessian_dissimilarity", "gradient_dissimilarity", "noise")


def test_quadratics_are_refused() -> None:
    check_all(
        [
            *(
                case
                for name in ("clients", "dim", "examples")
                for case in counts("quadratics", fm.theory.quadratics, name, 1)
            ),
            *numbers("quadratics", fm.theory.quadratics, {"smoothness": "positive"}),
            *numbers("quadratics", fm.theory.quadratics, {"convexity": "positive"}, types=()),
            *numbers("quadratics", fm.theory.quadratics, dict.fromkeys(SPREADS, "not negative"), types=()),
            wrong(lambda: fm.theory.quadratics(smoothness=1.0, convexity=2.0), "convexity", 2.0),
            *(wrong(lambda v=v: fm.theory.quadratics(seed=v), "seed", v) for v in (-1, "a", 1.5)),
        ]
    )


FUNCTIONS = {"init": len, "loss": len, "metrics": len, "check": len}


def test_problems_need_functions() -> None:
    check_all(wrong(lambda n=n: m.from_functions(**FUNCTIONS | {n: "f"}), n, "f") for n in FUNCTIONS)


def test_problems_need_counts() -> None:
    check_all(
        wrong(lambda n=n, v=v: dataclasses.replace(m.from_functions(len, len), **{n: v}), n, v)
        for n in ("chunk",)
        for v in (0, *NOT_COUNTS)
    )


def test_models_are_refused() -> None:
    check_all(
        [
            *(
                wrong(lambda f=f, v=v: f(classes=v), "classes", v, f.__name__)
                for f in (m.logistic, m.mlp)
                for v in (0, 1, *NOT_COUNTS)
            ),
            *(
                wrong(lambda f=f, v=v: f(input_shape=v), "input_shape", v, f.__name__)
                for f in (m.logistic, m.mlp)
                for v in ((), "28", None, 2.5, {})
            ),
            *(
                wrong(lambda f=f, v=v: f(input_shape=(4, v)), "input_shape[1]", v, f.__name__)
                for f in (m.logistic, m.mlp)
                for v in (0, *NOT_COUNTS)
            ),
            *(wrong(lambda v=v: m.mlp(hidden=(5, v)), "hidden[1]", v) for v in (0, *NOT_COUNTS)),
            *(wrong(lambda v=v: m.mlp(hidden=v), "hidden", v) for v in ("300", None, 2.5)),
        ]
    )


@pytest.mark.parametrize("value", [np.int64(2), np.int32(2)])
def test_whole_numbers_of_numpy_are_whole_numbers(value) -> None:
    """What `len` of an array's shape or a sweep over `np.arange` gives is no mistake."""
    assert a.server_only_mvr(0.1, 0.9, init_rounds=value).gradient_rounds == 2
