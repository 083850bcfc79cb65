"""Tasks: data and model fit each other, and the settings are the paper's."""

from pathlib import Path

import jax
import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import logsumexp
from threadpoolctl import threadpool_limits

from fedmime.errors import ConfigError, DataError
from fedmime.experiments import tasks, train
from fedmime.experiments.plan import plan
from fedmime.experiments.setting import Setting

ROOT = Path(__file__).parents[2]
EMBEDDED = [task.name for task in tasks.TASKS.values() if not task.published]
PUBLISHED = [task.name for task in tasks.TASKS.values() if task.published]


@pytest.mark.usefixtures("few_writers")
@pytest.mark.parametrize("name", EMBEDDED)
def test_models_fit_their_data(name: str) -> None:
    task = tasks.get(name)
    problem, clients = task.problem(), train.prepare(Setting(task=name)).population
    columns = clients.client_at(int(np.argmax(clients.sizes)))
    problem.check(columns)
    batch = {field: column[:2] for field, column in columns.items()}
    losses = jax.eval_shape(lambda key: problem.loss(problem.init(key), batch, key), jax.random.key(0))
    assert losses.shape == (2,)
    assert clients.test is not None
    assert len(clients) >= task.cohort


@pytest.mark.slow
def test_the_example_with_fewer_writers_has_the_model_of_handwriting_mlp() -> None:
    example = tasks.get(f"{ROOT / 'examples/fewer_writers.py'}:task")
    model, all_writers = (
        jax.eval_shape(task.problem().init, jax.random.key(0)) for task in (example, tasks.get("handwriting-mlp"))
    )
    assert jax.tree.map(lambda leaf: leaf.shape, model) == jax.tree.map(lambda leaf: leaf.shape, all_writers)


def test_the_handwriting_of_a_task_has_all_writers() -> None:
    assert len(tasks.get("handwriting-mlp").clients()) == 3400


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_tasks_say_what_is_missing(name: str, tmp_path) -> None:
    with pytest.raises(DataError, match="fedmime data fetch") as caught:
        train.prepare(Setting(task=name), tmp_path)
    assert "\n" not in str(caught.value)
    assert jax.eval_shape(tasks.get(name).problem().init, jax.random.key(0))


def test_settings_are_the_papers() -> None:
    """20 clients a round, batches of 10, one epoch; Stack Overflow with 50 clients."""
    for task in tasks.TASKS.values():
        if not task.name.startswith(("digits", "annotators")):
            assert (task.rounds, task.batch_size, task.epochs) == (1000, 10, 1)
            assert task.cohort == (50 if task.name.startswith("stackoverflow") else 20)


def test_the_annotators_optimum_is_known() -> None:
    """Between f(w) and the bound of strong convexity, f(w) - ‖∇f(w)‖² / 2λ, at a w that SciPy finds in float64."""
    task, ridge = tasks.get("annotators"), 1e-4
    pool = task.clients().pool()
    x = np.c_[pool["x"].reshape(len(pool["y"]), -1), np.ones(len(pool["y"]))].astype(np.float64)
    hot = np.eye(10)[pool["y"]]

    def objective(w: np.ndarray) -> tuple[float, np.ndarray]:
        z = x @ w.reshape(10, -1).T
        log_p = z - logsumexp(z, axis=1, keepdims=True)
        gradient = (np.exp(log_p) - hot).T @ x / len(x) + ridge * w.reshape(10, -1)
        return -(log_p * hot).sum() / len(x) + ridge / 2 * w @ w, gradient.ravel()

    options = {"maxiter": 5000, "maxfun": 10000, "ftol": 0, "gtol": 1e-6, "maxcor": 50}
    with threadpool_limits(1):  # products of a millisecond: more threads would wait for one another
        w = minimize(objective, np.zeros(650), jac=True, method="L-BFGS-B", options=options).x
    above, gradient = objective(w)
    below = above - gradient @ gradient / (2 * ridge)
    assert above - below < 1e-6
    assert below - 1e-7 < task.optimum < above + 1e-7


def test_training_loss_is_measured_where_a_gap_is_asked_for() -> None:
    prepared = train.prepare(Setting(task="annotators", rounds=2, evaluate_every=2, eta=1.0))
    found = train.run(prepared)
    pool = prepared.population.pool()
    losses = prepared.problem.loss(found.params, pool, jax.random.key(0))
    assert found.history["train_loss"][1] == pytest.approx(float(losses.mean()), rel=1e-5)
    assert np.isnan(found.history["train_loss"][0])
    assert "train_loss" not in train.run(train.prepare(Setting(task="digits-two-labels", rounds=1))).history


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"task": "annotators", "target_gap": -1.0}, "target_gap must be positive, got -1.0"),
        ({"task": "annotators", "target_gap": 0.1, "target": 0.9}, "an accuracy as target or a target_gap, not both"),
        ({"task": "digits-logistic", "target_gap": 0.1}, "target_gap=0.1 needs the optimum"),
    ],
)
def test_targets_that_cannot_be(fields: dict, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        train.prepare(Setting(**fields))


def test_a_target_of_the_users_own() -> None:
    asked = train.prepare(Setting(task="annotators", target=0.9)).setting
    assert (asked.target, asked.target_gap) == (0.9, None)
    asked = train.prepare(Setting(task="digits-logistic", target_gap=0.1, optimum=0.2)).setting
    assert (asked.target, asked.target_gap, asked.optimum) == (None, 0.1, 0.2)


def test_tasks_are_found_by_name() -> None:
    assert all(tasks.get(name).name == name for name in tasks.TASKS)
    with pytest.raises(ConfigError, match="did you mean 'emnist-cnn'"):
        tasks.get("emnist-ccn")
    with pytest.raises(ConfigError, match="accepted are handwriting-logistic"):
        tasks.get("zzz")


def test_cohorts_that_exceed_the_population() -> None:
    with pytest.raises(ConfigError, match="cohort=51 exceeds the 50 clients of digits-logistic"):
        train.prepare(Setting(task="digits-logistic", cohort=51))


@pytest.mark.parametrize(
    ("fields", "down", "up"),
    [
        ({"algorithm": "fedavg"}, 1, 1),
        ({"algorithm": "scaffold"}, 2, 2),
        ({"algorithm": "centralized"}, 0, 0),
    ],
)
def test_plans_count_models_sent(fields: dict, down: int, up: int) -> None:
    found = plan(train.prepare(Setting(task="digits-logistic", cohort=6, rounds=7, **fields)))
    assert (found.bytes_down, found.bytes_up) == (6 * down * found.model_bytes, 6 * up * found.model_bytes)
    assert found.total_bytes == 7 * (found.bytes_down + found.bytes_up)
    assert found.seconds > 0
