"""Wrong cohorts, states and arguments of a round."""

import dataclasses

import jax
import numpy as np
import pytest

import fedmime as fm
from refusals.refusal import check, check_all, wrong

a, o = fm.algorithms, fm.optimizers
from_batches = fm.Cohort.from_batches
NAN, INF = float("nan"), float("inf")


def client(steps: int = 2, batch: int = 3) -> dict[str, np.ndarray]:
    return {"x": np.zeros((steps, batch, 4)), "y": np.zeros((steps, batch), np.int64)}


def examples(n: int = 5) -> dict[str, np.ndarray]:
    return {"x": np.zeros((n, 4)), "y": np.zeros(n, np.int64)}


TWO = [client(), client()]
MASK = np.ones((2, 3), bool)
COHORTS = [
    wrong(lambda: from_batches([]), "cohort", "empty", shown="empty"),
    wrong(lambda: from_batches(None), "cohort", None, shown="empty"),
    wrong(lambda: from_batches([{}]), "client 0", "no fields", shown="no fields"),
    wrong(lambda: from_batches([np.zeros((2, 3))]), "client 0", "array", shown="ndarray"),
    wrong(lambda: from_batches([{"x": np.zeros(3)}]), "client 0", (3,)),
    wrong(lambda: from_batches([{"x": np.float64(3)}]), "client 0", ()),
    wrong(lambda: from_batches([client(), {"x": np.zeros((0, 3, 4)), "y": np.zeros((0, 3))}]), "client 1", (0, 3)),
    wrong(lambda: from_batches([client(), client(batch=0)]), "client 1", (2, 0)),
    wrong(lambda: from_batches([client() | {"y": np.zeros((2, 4), np.int64)}]), "client 0", (2, 4)),
    wrong(lambda: from_batches([client(), {"x": np.zeros((2, 3, 4))}]), "entry 1", ["x"], shown="'x'"),
    wrong(lambda: from_batches([client(), client() | {"x": np.zeros((2, 3, 5))}]), "entry 1", (5,)),
    wrong(lambda: from_batches([client(), client() | {"x": np.zeros((2, 3, 4), np.float32)}]), "entry 1", "float32"),
    wrong(lambda: from_batches([client() | {"x": np.full((2, 3), "a")}]), "client 0", "<U1", shown="<U1"),
    wrong(lambda: from_batches([client() | {"x": np.full((2, 3), None)}]), "client 0", "object", shown="object"),
    wrong(lambda: from_batches(TWO, mask=[MASK]), "mask", 1),
    wrong(lambda: from_batches(TWO, mask=[MASK, MASK[:1]]), "mask of client 1", (1, 3)),
    wrong(lambda: from_batches(TWO, mask=[MASK, ~MASK]), "client 1", "no examples", shown="no examples"),
    wrong(lambda: from_batches(TWO, mask=[MASK, MASK * 0.5]), "mask of client 1", 0.5),
    wrong(lambda: from_batches(TWO, mask=3), "mask", 3),
    *(
        wrong(lambda n=n, v=v: from_batches(TWO, **{n: v}), n, v, shown=shown)
        for n in ("weights", "gradient_weights")
        for v, shown in (
            ([1], "(1,)"),
            ([1, 2, 3], "(3,)"),
            ([1, -1], "-1.0"),
            ([1, NAN], "nan"),
            ([1, INF], "inf"),
            ([0, 0], "[0.0, 0.0]"),
            ([[1, 2]], "(1, 2)"),
            ("examples", "'examples'"),
            (["a", "b"], "'a'"),
            (2.0, "()"),
        )
    ),
    *(
        wrong(lambda v=v: from_batches(TWO, ids=v), "ids", v)
        for v in ([0], [1, 1], [0, -1], [0, 1.5], [0, True], ["a", "b"], [0, None], 3)
    ),
    *(
        wrong(lambda v=v: from_batches(TWO, population=v), "population", v)
        for v in (1, 0, -1, 2.5, NAN, "9", True, [9])
    ),
    wrong(lambda: from_batches(TWO, ids=[0, 7], population=7), "population", 7),
    wrong(lambda: from_batches(TWO, full=[]), "full", []),
    wrong(lambda: from_batches(TWO, full=[examples(), {}]), "full[1]", "{}", shown="{}"),
    wrong(lambda: from_batches(TWO, full=[examples(), examples(0)]), "full[1]", 0, shown="no examples"),
    wrong(lambda: from_batches(TWO, full=[examples() | {"y": np.zeros(4)}]), "full[0]", 4),
    wrong(
        lambda: from_batches(TWO, full=[examples(), {"x": np.float64(3)}]),
        "full[1]",
        "single",
        shown="()",
    ),
    wrong(lambda: from_batches(TWO, full=[{"z": np.zeros(3)}]), "full[0]", "z"),
    wrong(lambda: from_batches(TWO, full=3), "full", 3),
]


def test_cohorts_are_refused() -> None:
    check_all(COHORTS)


PROBLEM = fm.models.logistic(input_shape=(4,), classes=3)
PARAMS = PROBLEM.init(jax.random.key(0))
FEDAVG, MIME = a.fedavg(0.1), a.mime(o.momentum(), 0.1)
COHORT = from_batches(TWO)
GOOD = {"algorithm": FEDAVG, "problem": PROBLEM, "state": FEDAVG.init(PARAMS), "cohort": COHORT}


def _round(**changes):
    return lambda: fm.run_round(**GOOD | changes)


def _train_only() -> fm.Cohort:
    """Clients that train and of whom nobody can be asked for a gradient."""
    return dataclasses.replace(COHORT, members=tuple(m._replace(sends_gradient=False) for m in COHORT.members))


WIDE = {"dense0": {"w": np.zeros((5, 3)), "b": np.zeros(3)}}
ROUNDS = [
    *(wrong(_round(algorithm=v), "algorithm", v) for v in ("fedavg", None, a.fedavg)),
    *(wrong(_round(problem=v), "problem", v) for v in (None, "logistic", 3)),
    *(wrong(_round(state=v), "state", type(v).__name__, shown=type(v).__name__) for v in (None, {}, 3, PARAMS)),
    wrong(_round(state=MIME.init(PARAMS)), "state", "Mime", "state of Mime", "MimeState"),
    wrong(_round(algorithm=MIME), "state", "FedAvg", "state of FedAvg", "FedAvgState"),
    wrong(
        _round(algorithm=MIME, state=a.mime(o.adam(), 0.1).init(PARAMS)), "state", "Mime", "state of other base", "Mime"
    ),
    wrong(_round(state=FEDAVG.init({"w": np.zeros(3)})), "params", "w", "params of another model"),
    wrong(_round(state=FEDAVG.init(WIDE)), "params", (5, 3), "params of another shape"),
    *(wrong(_round(cohort=v), "cohort", type(v).__name__, shown=type(v).__name__) for v in (None, [], TWO[0])),
    wrong(_round(cohort=dataclasses.replace(COHORT, members=())), "cohort", "empty", shown="no client"),
    wrong(
        _round(algorithm=MIME, state=MIME.init(PARAMS), cohort=_train_only()),
        "cohort",
        "no gradients",
        shown="no client",
    ),
    *(wrong(_round(devices=v), "devices", v) for v in (0, -1, 999, 1.5, "2", True)),
    *(wrong(_round(key=v), "key", v) for v in (3, "seed")),
    *(wrong(_round(memory=v), "memory", v) for v in (3, "kept")),
]


def test_rounds_are_refused() -> None:
    check_all(ROUNDS)


def test_split_cohorts_need_clients_that_only_send_gradients() -> None:
    split = a.mime(o.momentum(), 0.1, split=True)
    check(wrong(_round(algorithm=split, state=split.init(PARAMS)), "full", "full=[...]", shown="full=[...]"))


def _with(**fields) -> fm.Cohort:
    return from_batches([client(), client() | fields])


BAD_DATA = {
    "label too large": (_with(y=np.full((2, 3), 3)), "'y'", "3"),
    "label negative": (_with(y=np.full((2, 3), -1)), "'y'", "-1"),
    "labels are floats": (from_batches([client() | {"y": np.zeros((2, 3))}] * 2), "'y'", "float64"),
    "labels one-hot": (from_batches([client() | {"y": np.zeros((2, 3, 3), int)}] * 2), "'y'", "[6, 3]"),
    "another shape": (from_batches([client() | {"x": np.zeros((2, 3, 5))}] * 2), "'x'", "[6, 5]"),
    "bytes": (from_batches([client() | {"x": np.full((2, 3, 4), 255, np.uint8)}] * 2), "'x'", "uint8"),
    "integers": (from_batches([client() | {"x": np.zeros((2, 3, 4), int)}] * 2), "'x'", "int64"),
    "missing field": (from_batches([{"x": client()["x"]}] * 2), "'y'", "['x']"),
}


def test_a_client_that_is_not_finite_is_no_error() -> None:
    """It is left out and named, see the faults."""
    info = fm.run_round(FEDAVG, PROBLEM, FEDAVG.init(PARAMS), _with(x=np.full((2, 3, 4), np.nan)))[1]
    assert (info.refused, info.abandoned, info.clients) == ((1,), False, 1)


@pytest.mark.parametrize("problem", [PROBLEM, fm.models.mlp((4,), 3, (5,))], ids=["logistic", "mlp"])
@pytest.mark.parametrize("name", BAD_DATA)
def test_data_that_a_model_cannot_learn_is_refused(problem: fm.models.Problem, name: str) -> None:
    cohort, field, shown = BAD_DATA[name]
    state = FEDAVG.init(problem.init(jax.random.key(0)))
    check(wrong(_round(problem=problem, state=state, cohort=cohort), field, name, shown=shown))


def test_bad_data_names_the_client_by_its_position_in_the_population() -> None:
    cohort = from_batches([client(), client() | {"y": np.full((2, 3), 9)}], ids=[4, 7], population=8)
    check(wrong(_round(cohort=cohort), "client 7", 9))
