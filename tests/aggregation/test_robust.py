"""Robust combiners: against plain NumPy, as laws, and under attack."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compiled import programs
from fedmime.aggregation import robust
from fedmime.aggregation.combiner import Combiner, Mean
from fedmime.hyperparameters import at_round
from refusals.refusal import NOT_FINITE, NOT_NUMBERS, Wrong, check_all, counts, numbers, wrong

ROWS, CLOSE = 8, {"float64": 1e-12, "float32": 1e-5}
combine = jax.jit(lambda combiner, messages, weights: combiner.combine(messages, weights))


def _weiszfeld(rows: np.ndarray, weights: np.ndarray, iterations: int, smoothing: float) -> np.ndarray:
    v = weights @ rows / weights.sum()
    for _ in range(iterations):
        shares = weights / np.maximum(np.linalg.norm(rows - v, axis=1), smoothing)
        v = shares @ rows / shares.sum()
    return v


def _trimmed(rows: np.ndarray, fraction: str) -> np.ndarray:
    dropped = int(Fraction(fraction) * len(rows))
    return np.sort(rows, axis=0)[dropped : len(rows) - dropped].mean(0)


def _krum(rows: np.ndarray, attackers: int, keep: int) -> np.ndarray:
    squares = ((rows[:, None] - rows) ** 2).sum(2)
    scores = [np.sort(np.delete(row, i))[: max(len(rows) - attackers - 2, 1)].sum() for i, row in enumerate(squares)]
    return rows[np.argsort(scores, kind="stable")[:keep]].mean(0)


# each combiner, and the same in NumPy of the rows of present clients [present, entries] and their weights
CASES = {
    "median": (robust.median(), lambda z, w: np.median(z, axis=0)),
    "trimmed_mean": (robust.trimmed_mean(0.2), lambda z, w: _trimmed(z, "0.2")),
    "geometric_median": (robust.geometric_median(5, 1e-3), lambda z, w: _weiszfeld(z, w, 5, 1e-3)),
    "krum": (robust.krum(1), lambda z, w: _krum(z, 1, 1)),
    "multi_krum": (robust.krum(2, keep=3), lambda z, w: _krum(z, 2, 3)),
}
ROBUST = {name: combiner for name, (combiner, _) in CASES.items()}
each_combiner = pytest.mark.parametrize("name", CASES)


def _tree(rows: np.ndarray, dtype: str = "float64") -> dict[str, jax.Array]:
    """Rows [clients, 10] as messages of two arrays."""
    return {"w": jnp.asarray(rows[:, :6].reshape(-1, 2, 3), dtype), "b": jnp.asarray(rows[:, 6:], dtype)}


def _flat(tree: dict[str, jax.Array]) -> np.ndarray:
    return np.concatenate([np.asarray(tree["w"], np.float64).ravel(), np.asarray(tree["b"], np.float64)])


def _combined(combiner: Combiner, rows: np.ndarray, weights: np.ndarray, dtype: str = "float64") -> np.ndarray:
    combined = combine(combiner, _tree(rows, dtype), jnp.asarray(weights, dtype))
    assert all(leaf.dtype == dtype for leaf in jax.tree.leaves(combined))
    return _flat(combined)


def _cohort(present: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Messages and weights of which `present` count, in random places; the others are zero."""
    random = np.random.default_rng(seed)
    weights = np.zeros(ROWS)
    weights[random.permutation(ROWS)[:present]] = random.uniform(0.5, 3, present)
    return random.normal(size=(ROWS, 10)) * (weights > 0)[:, None] + (weights > 0)[:, None], weights


@each_combiner
@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("present", [1, 2, 3, 5, 6, ROWS])
def test_agrees_with_numpy(name: str, dtype: str, present: int) -> None:
    combiner, plain = CASES[name]
    rows, weights = _cohort(present)
    there = weights > 0
    with jax.numpy_dtype_promotion("strict"):
        ours = _combined(combiner, rows, weights, dtype)
    np.testing.assert_allclose(ours, plain(rows[there], weights[there]), rtol=CLOSE[dtype], atol=CLOSE[dtype])


@each_combiner
@pytest.mark.parametrize("present", [3, 6])
def test_ties_are_no_trouble(name: str, present: int) -> None:
    """Equal messages, equal coordinates, and a point of the geometric median that sits on a message."""
    combiner, plain = CASES[name]
    rows, weights = _cohort(present)
    same = np.where(weights[:, None] > 0, np.arange(10.0), 0)
    np.testing.assert_allclose(_combined(combiner, same, weights), np.arange(10.0), atol=1e-12)
    coarse, there = np.round(rows), weights > 0
    np.testing.assert_allclose(_combined(combiner, coarse, weights), plain(coarse[there], weights[there]), atol=1e-12)


@each_combiner
@pytest.mark.parametrize("dtype", CLOSE)
def test_nobody_gives_zero(name: str, dtype: str) -> None:
    np.testing.assert_array_equal(_combined(ROBUST[name], np.zeros((ROWS, 10)), np.zeros(ROWS), dtype), 0)


@each_combiner
@pytest.mark.parametrize("junk", [1e9, np.nan, -np.inf])
def test_rows_without_weight_count_for_nothing(name: str, junk: float) -> None:
    rows, weights = _cohort(5)
    spoiled = np.where(weights[:, None] > 0, rows, junk)
    np.testing.assert_array_equal(_combined(ROBUST[name], spoiled, weights), _combined(ROBUST[name], rows, weights))


def test_weights_of_another_precision_do_not_widen_messages() -> None:
    rows, weights = _cohort(5)
    for combiner in ROBUST.values():
        combined = combine(combiner, _tree(rows, "float32"), jnp.asarray(weights, jnp.float64))
        assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(combined))


def test_trimming_nothing_is_the_mean() -> None:
    for nothing in (0, 0.0, np.float32(0)):
        assert isinstance(robust.trimmed_mean(nothing), Mean)
    rows, weights = _cohort(6)
    np.testing.assert_array_equal(_combined(robust.trimmed_mean(0), rows, weights), _combined(Mean(), rows, weights))


def test_the_number_trimmed_is_exact_and_needs_no_new_program() -> None:
    """0.29 of 100 clients are 29, although 0.29 * 100 < 29 in binary; and something always remains."""
    rows, weights = np.arange(100.0)[:, None] ** 2, np.ones(100)
    trimmed = jax.jit(lambda c, w: c.combine(jnp.asarray(rows), w))
    before = None
    for hundredths in (1, 7, 14, 28, 29, 33, 49):
        for present in (1, 2, 50, 99, 100):
            combiner = robust.trimmed_mean(hundredths / 100)
            ours = trimmed(combiner, jnp.asarray(weights * (np.arange(100) < present)))
            np.testing.assert_allclose(ours, _trimmed(rows[:present], f"{hundredths}/100"), rtol=1e-12)
            before = before or programs()
    assert programs() == before
    almost = robust.trimmed_mean(0.5 - 1e-12)
    np.testing.assert_allclose(trimmed(almost, jnp.asarray(weights)), (49**2 + 50**2) / 2)


def test_a_schedule_of_fractions() -> None:
    combiner = robust.trimmed_mean(lambda t: 0.1 * t)
    rows, weights = _cohort(ROWS)
    for t in (0, 3):
        np.testing.assert_allclose(_combined(at_round(combiner, t), rows, weights), _trimmed(rows, f"{t}/10"))


def test_the_median_of_huge_numbers_is_finite() -> None:
    largest = float(np.finfo(np.float32).max)
    assert robust.median().combine(jnp.full((2, 1), largest, jnp.float32), jnp.ones(2))[0] == largest


def test_the_geometric_median_minimizes_the_sum_of_distances() -> None:
    rows, weights = _cohort(7)
    cost = lambda v: weights @ np.linalg.norm(rows - v, axis=1)
    found = _combined(robust.geometric_median(200), rows, weights)
    random = np.random.default_rng(1)
    assert all(
        cost(found) <= cost(found + scale * random.normal(size=10)) for scale in (1e-4, 1e-2, 1) for _ in range(50)
    )
    default = _combined(robust.geometric_median(), rows, weights)
    assert cost(default) <= (1 + 1e-6) * cost(found)


# Laws. Entries are multiples of 1/8, so that moving all messages by such a number is exact.
eighths = st.integers(-80, 80).map(lambda i: i / 8)
cohorts = st.tuples(
    st.lists(st.lists(eighths, min_size=10, max_size=10), min_size=ROWS, max_size=ROWS).map(np.array),
    st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0]), min_size=ROWS, max_size=ROWS).map(np.array),
)
anything = st.lists(st.floats(-1e6, 1e6), min_size=20, max_size=20).map(lambda sent: np.reshape(sent, (2, 10)))


@each_combiner
def test_the_order_of_clients_does_not_matter(name: str, fact) -> None:
    @given(st.integers(0, 2**32 - 1), st.integers(1, ROWS), st.permutations(range(ROWS)))
    def holds(seed, present, order) -> None:
        # Two clients that are each other's only neighbour have the same score, which Krum gives to the first.
        rows, weights = _cohort(ROWS if "krum" in name else present, seed)
        ours = _combined(ROBUST[name], rows, weights)
        moved = _combined(ROBUST[name], rows[order], weights[order])
        np.testing.assert_allclose(moved, ours, rtol=1e-9, atol=1e-9)
        fact("robust combiners: order of clients", np.abs(moved - ours).max())

    holds()


@each_combiner
def test_moving_all_messages_moves_the_result(name: str) -> None:
    @given(cohorts, st.lists(eighths, min_size=10, max_size=10).map(np.array))
    def holds(cohort, shift) -> None:
        rows, weights = cohort
        there = (weights > 0)[:, None]
        ours = _combined(ROBUST[name], rows * there, weights)
        moved = _combined(ROBUST[name], (rows + shift) * there, weights)
        np.testing.assert_allclose(moved, ours + shift * there.any(), rtol=1e-9, atol=1e-9)

    holds()


BOUNDED = {"median": robust.median(), "trimmed_mean": robust.trimmed_mean(0.25)}


@pytest.mark.parametrize("name", BOUNDED)
def test_coordinates_stay_between_those_of_honest_clients(name: str) -> None:
    """Two of eight clients send anything."""

    @given(cohorts, anything, st.permutations(range(ROWS)))
    def holds(cohort, sent, order) -> None:
        honest = cohort[0][2:]
        ours = _combined(BOUNDED[name], np.concatenate([sent, honest])[order], np.ones(ROWS))
        assert (honest.min(0) - 1e-9 <= ours).all()
        assert (ours <= honest.max(0) + 1e-9).all()

    holds()


# How far two of eight clients can move the result, in units of the largest distance r of an honest client from the
# honest mean. Geometric median: 2 · 6 / (6 − 2). Krum: an honest score is at most k (2r)² for k neighbours, so that a
# chosen attacker has one of its k − 1 honest neighbours within 2r √(k / (k − 1)), which is within r of the mean.
REACH = {
    "geometric_median": (robust.geometric_median(200), 3.0),
    "krum": (robust.krum(2), 1 + 2 * np.sqrt(4 / 3)),
    "multi_krum": (robust.krum(2, keep=6), 1 + 2 * np.sqrt(4 / 3)),
}


@pytest.mark.parametrize("name", REACH)
def test_attackers_do_not_reach_far(name: str, fact) -> None:
    combiner, reach = REACH[name]

    @given(cohorts, anything, st.permutations(range(ROWS)))
    def holds(cohort, sent, order) -> None:
        honest = cohort[0][2:]
        ours = _combined(combiner, np.concatenate([sent, honest])[order], np.ones(ROWS))
        spread = np.linalg.norm(honest - honest.mean(0), axis=1).max()
        distance = np.linalg.norm(ours - honest.mean(0))
        assert distance <= reach * spread + 1e-3
        fact("robust combiners: share of the bound used under attack", distance / (reach * spread + 1e-3))

    holds()


@pytest.mark.parametrize("dtype", CLOSE)
def test_a_fifth_of_sign_flippers_moves_the_mean_only(dtype: str) -> None:
    """Fault 44: four of twenty clients send -10 times their message."""
    random = np.random.default_rng(0)
    rows = random.normal(1, 0.3, size=(20, 10))
    rows[[3, 7, 8, 19]] *= -10
    honest = np.delete(rows, [3, 7, 8, 19], axis=0).mean(0)
    error = lambda combiner: np.linalg.norm(_combined(combiner, rows, np.ones(20), dtype) - honest)
    length = np.linalg.norm(honest)
    assert error(Mean()) > 2 * length
    defences = [robust.median(), robust.trimmed_mean(0.2), robust.trimmed_mean(0.3), robust.geometric_median()]
    for combiner in (*defences, robust.krum(4, keep=10)):
        assert error(combiner) < 0.2 * length, combiner


FRACTIONS = [-0.1, 0.5, 0.7, *NOT_FINITE, *NOT_NUMBERS]
WRONG: list[Wrong] = [
    *(wrong(lambda v=v: robust.trimmed_mean(v), "fraction", v, "trimmed_mean.fraction") for v in FRACTIONS),
    *numbers("geometric_median", robust.geometric_median, {"smoothing": "positive"}),
    *counts("geometric_median", robust.geometric_median, "iterations", 1),
    *counts("krum", robust.krum, "attackers", 0),
    *counts("krum", robust.krum, "keep", 1, attackers=1),
]


def test_wrong_arguments_are_refused() -> None:
    check_all(WRONG)
