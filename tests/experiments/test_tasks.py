"""Tasks: data and model fit each other, and the settings are the paper's."""

import jax
import numpy as np
import pytest

from fedmime.errors import ConfigError, DataError
from fedmime.experiments import tasks, train
from fedmime.experiments.plan import plan
from fedmime.experiments.setting import Setting

EMBEDDED = [task.name for task in tasks.TASKS.values() if task.embedded]
PUBLISHED = [task.name for task in tasks.TASKS.values() if not task.embedded]


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


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_tasks_say_what_is_missing(name: str, tmp_path) -> None:
    with pytest.raises(DataError, match="fedmime data fetch") as caught:
        train.prepare(Setting(task=name), tmp_path)
    assert "\n" not in str(caught.value)
    assert jax.eval_shape(tasks.get(name).problem().init, jax.random.key(0))


def test_settings_are_the_papers() -> None:
    """20 clients a round, batches of 10, one epoch; Stack Overflow with 50 clients."""
    for task in tasks.TASKS.values():
        if task.dataset != "digits":
            assert (task.rounds, task.batch_size, task.epochs) == (1000, 10, 1)
            assert task.cohort == (50 if task.dataset == "stackoverflow" else 20)


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
