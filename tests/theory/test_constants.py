"""Measured constants against dense ones, on a quadratic, a convex and a non-convex problem."""

import jax
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import fedmime as fm
from fedmime.theory import constants
from fedmime.theory.draws import draw

SIZES = (40, 33, 24, 9)  # whole and partial mini-batches, and a client with less than one
BATCH = 10


def _classification(dim: int = 4, classes: int = 3, clients: int = 12):
    rng = np.random.default_rng(3)
    columns = {}
    for i in range(clients):
        n = SIZES[i % len(SIZES)]
        x = rng.normal(rng.normal(size=dim), 1 + 0.5 * (i % 3), size=(n, dim))
        columns[f"c{i}"] = {"x": x, "y": rng.integers(0, classes - i % 2, n)}
    return fm.data.from_arrays(columns)


def _quadratics():
    made = fm.theory.quadratics(12, 8, hessian_dissimilarity=0.3, noise=2.0, examples=24, seed=4)
    return made.problem(), made.population(), {"x": np.random.default_rng(0).normal(size=8)}


def _model(problem):
    start = problem.init(jax.random.key(1))
    return jax.tree.map(lambda a: np.asarray(a, np.float64) + 0.3, start)


def _logistic():
    problem = fm.models.logistic(input_shape=(4,), classes=3)
    return problem, _classification(), _model(problem)


def _mlp():
    problem = fm.models.mlp(input_shape=(4,), classes=3, hidden=(5,))
    return problem, _classification(), _model(problem)


PROBLEMS = {"quadratics": _quadratics, "logistic": _logistic, "mlp": _mlp}
DRAWS = 30


def _dense(problem, population, params, weights):
    """Everything from per-example gradients and full Hessians."""
    flat, unravel = ravel_pytree(params)
    losses = jax.jit(lambda z, columns: problem.loss(unravel(z), columns, jax.random.key(0)))
    jacobian = jax.jit(jax.jacrev(losses))
    hessian = jax.jit(jax.hessian(lambda z, columns: losses(z, columns).mean()))
    clients = [population.client_at(i) for i in range(len(population))]
    examples = [np.asarray(jacobian(flat, columns)) for columns in clients]
    hessians = np.stack([hessian(flat, columns) for columns in clients])
    sizes = population.sizes.astype(float)
    w = sizes / sizes.sum() if weights == "examples" else np.full(len(sizes), 1 / len(sizes))
    gradients = np.stack([g.mean(0) for g in examples])
    mean, curvature = w @ gradients, np.tensordot(w, hessians, 1)
    sigma2 = []
    for g in examples:
        n = len(g)
        variance = np.sum((g - g.mean(0)) ** 2) / max(n - 1, 1)
        lengths = [min(BATCH, n - start) for start in range(0, n, BATCH)]
        sigma2.append(np.mean([variance / b * (1 - b / n) for b in lengths]))
    return {
        "G2": float(w @ np.sum((gradients - mean) ** 2, axis=1)),
        "sigma2": float(w @ sigma2),
        "L": float(np.linalg.norm(curvature, 2)),
        "delta": max(float(np.linalg.norm(h - curvature, 2)) for h in hessians),
        "gradient_norm2": float(mean @ mean),
    }


@pytest.mark.parametrize("name", PROBLEMS)
def test_within_a_few_percent_of_dense_values(name, fact):
    problem, population, params = PROBLEMS[name]()
    for weights in ("examples", "uniform"):
        wanted = _dense(problem, population, params, weights)
        found = constants(problem, population, params, weights=weights, batch_size=BATCH, passes=40, tolerance=0.01)
        for constant, tolerance in (("G2", 0.05), ("sigma2", 0.05), ("L", 0.1), ("delta", 0.1)):
            error = abs(getattr(found, constant) / wanted[constant] - 1)
            assert error <= tolerance, constant
            fact(f"error of {constant} against dense values", error)
        assert found.gradient_norm2 == pytest.approx(wanted["gradient_norm2"], rel=1e-9)
        assert found.intervals.G2 == (found.G2, found.G2)  # everybody was asked
        assert found.covered == 1.0


@pytest.mark.parametrize("weights", ["examples", "uniform"])
def test_samples_of_clients_are_unbiased(weights, fact):
    """The mean over many small samples comes to the whole population's G² and σ², and intervals cover it."""
    problem, population, params = _logistic()
    wanted = _dense(problem, population, params, weights)
    found = [
        constants(problem, population, params, clients=5, curvature_clients=1, products=2, weights=weights, seed=seed)
        for seed in range(DRAWS)
    ]
    for constant in ("G2", "sigma2", "gradient_norm2"):
        values = np.asarray([getattr(one, constant) for one in found])
        error = abs(values.mean() - wanted[constant]) / (values.std() / np.sqrt(DRAWS))
        assert error < 3
        fact("bias of sampled constants, in standard errors", error)
    inside = np.mean([one.intervals.sigma2[0] <= wanted["sigma2"] <= one.intervals.sigma2[1] for one in found])
    assert inside > 0.6


def test_sampled_curvature_stays_close():
    problem, population, params = _logistic()
    whole = constants(problem, population, params)
    found = constants(problem, population, params, clients=5, curvature_clients=8, seed=2)
    assert found.intervals.L[0] <= whole.L <= found.intervals.L[1]
    assert found.delta == found.deltas[0] >= found.quantile(0.9) >= found.quantile(0.5) > 0
    assert 0.5 < found.covered < 1


def test_fewer_examples_cost_less_and_differ_more():
    problem, population, params = _logistic()
    whole, some = (constants(problem, population, params, curvature_examples=most) for most in (None, 12))
    assert some.cost.examples / some.cost.products < 0.5 * whole.cost.examples / whole.cost.products
    assert whole.delta < some.delta < 3 * whole.delta
    assert pytest.approx(whole.L, rel=0.3) == some.L
    assert (some.G2, some.loss) == (whole.G2, whole.loss)


def test_known_constants_of_quadratics():
    made = fm.theory.quadratics(10, 6, smoothness=2.0, hessian_dissimilarity=0.25, gradient_dissimilarity=3.0, seed=1)
    found = constants(made.problem(), made.population(), {"x": made.optimum}, batch_size=None, tolerance=1e-6)
    assert (found.L, found.delta, found.G2) == pytest.approx((2.0, 0.25, 3.0), rel=1e-9)
    assert found.sigma2 == 0
    assert found.gradient_norm2 == pytest.approx(0, abs=1e-12)
    assert fm.theory.suggested_steps(found) == 8


def test_a_model_in_single_precision():
    problem, population, params = _logistic()
    wanted = constants(problem, population, params, products=12)
    found = constants(problem, population, jax.tree.map(np.float32, params), products=12)
    for name in ("G2", "sigma2", "L", "delta", "loss"):
        assert getattr(found, name) == pytest.approx(getattr(wanted, name), rel=1e-3), name


def test_identical_clients_are_at_no_distance():
    columns = _classification().client_at(0)
    population = fm.data.from_arrays({f"c{i}": columns for i in range(12)})
    problem = fm.models.logistic(input_shape=(4,), classes=3)
    found = constants(problem, population, _model(problem), tolerance=0.01)
    assert found.G2 < 1e-20
    assert found.delta < 1e-12
    assert found.L > 0.1


def test_dropout_is_left_out():
    """A loss that draws random numbers gives way to the one among the metrics."""
    plain, population, params = _logistic()

    def noisy(p, batch, key):
        return plain.loss(p, batch, key) * jax.random.bernoulli(key, 0.5, (len(batch["y"]),))

    dropping = fm.models.from_functions(plain.init, noisy, plain.metrics)
    wanted, found = (constants(one, population, params, passes=2, products=4) for one in (plain, dropping))
    assert (found.G2, found.sigma2, found.L) == pytest.approx((wanted.G2, wanted.sigma2, wanted.L), rel=1e-9)


def test_says_what_it_does_and_what_it_took():
    problem, population, params = _logistic()
    seen = []
    found = constants(problem, population, params, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] == len(seen)
    assert found.cost.products >= 13 * 4
    assert found.cost.gradients >= 12
    assert found.cost.examples > found.cost.products * population.sizes.sum()
    again = constants(problem, population, params)
    assert (again.G2, again.L, again.delta) == (found.G2, found.L, found.delta)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"clients": 1}, "constants: clients must be a whole number of at least 2, got 1"),
        ({"batch_size": 0}, "constants: batch_size must be a whole number of at least 1, got 0"),
        ({"curvature_examples": 0}, "constants: curvature_examples must be a whole number of at least 1, got 0"),
        ({"weights": "equal"}, "constants: weights must be one of 'examples', 'uniform', got 'equal'"),
        ({"tolerance": 0}, "constants: tolerance must be positive, got 0"),
        ({"params": {"w": 1}}, "constants: params must be a pytree of floating-point arrays"),
    ],
)
def test_refuses_what_makes_no_sense(arguments, words):
    problem, population, params = _logistic()
    arguments = {"params": params} | arguments
    with pytest.raises(fm.ConfigError, match=words):
        constants(problem, population, **arguments)


def test_refuses_a_diverged_model():
    problem, population, params = _logistic()
    with pytest.raises(fm.ConfigError, match="params must be finite"):
        constants(problem, population, jax.tree.map(lambda a: a * np.nan, params))


@pytest.mark.parametrize(("asked", "words"), [(100, "gradient of client 'c3'"), (11, "Hessian-vector product")])
def test_refuses_clients_that_are_not_finite(asked, words):
    problem, population, params = _logistic()
    columns = {f"c{i}": population.client_at(i) for i in range(len(population))}
    columns["c3"] = {**columns["c3"], "x": np.full_like(columns["c3"]["x"], np.nan)}
    broken = fm.data.from_arrays(columns)
    seed = 0 if asked == 100 else _seed_without(broken, asked, 3)
    with pytest.raises(fm.DataError, match=words):
        constants(problem, broken, params, clients=asked, weights="uniform", seed=seed)


def _seed_without(population, clients, position):
    """A seed whose gradients leave a client out; the Hessians of everybody do not."""
    return next(s for s in range(100) if position not in draw(population, clients, "uniform", s).positions)


def test_clients_of_any_size_share_three_programs():
    plain, population, params = _logistic()
    traces = []

    def loss(p, batch, key):
        traces.append(len(batch["y"]))
        return plain.loss(p, batch, key)

    problem = fm.models.from_functions(plain.init, loss)
    constants(problem, population, params, products=3)
    first = len(traces)
    assert first <= 8  # a few for each program, whatever the number of clients and products
    constants(problem, population, params, products=4, seed=1)
    assert len(traces) - first <= 2  # to see whether the loss draws random numbers
