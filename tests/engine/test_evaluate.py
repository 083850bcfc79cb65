"""Metrics are exact weighted means over all examples, the last partial batch included."""

import dataclasses

import jax
import numpy as np
import pytest

import fedmime as fm
from engine.setting import PROBLEM, columns, model
from fedmime import backends
from fedmime.engine.evaluate import evaluate, evaluate_clients
from reference import problems as ref_problems


def _on(problem, params=None, devices=None):
    return backends.local(devices).start(problem, model() if params is None else params)


def _by_hand(params, data) -> dict[str, float]:
    logits = data["x"] @ params["w"] + params["b"]
    one = ref_problems.logistic().loss
    losses = [one(params, {name: column[i : i + 1] for name, column in data.items()}) for i in range(len(logits))]
    return {
        "accuracy": float(np.mean(logits.argmax(axis=1) == data["y"])),
        "loss": float(np.average(losses, weights=data["x"][:, 0] ** 2)),
    }


@pytest.mark.parametrize("n", [1, 2, 3, 1000, 1024, 1025, 2500])
def test_metrics_are_means_over_all_examples(n: int) -> None:
    params, data = model(n), columns(np.random.default_rng(n), n)
    assert evaluate(_on(PROBLEM), params, data) == pytest.approx(_by_hand(params, data), rel=1e-12)


def test_padding_cannot_leak() -> None:
    """The padded rows repeat the last one: a batch that ends in an overflow counts it once."""
    data = columns(np.random.default_rng(0), 5)
    data["x"][-1] *= 1e200
    params = model()
    assert evaluate(_on(PROBLEM), params, data)["accuracy"] == _accuracy(params, data)


def _accuracy(params, data) -> float:
    return float(np.mean((data["x"] @ params["w"] + params["b"]).argmax(axis=1) == data["y"]))


def test_metric_without_weight_is_nan() -> None:
    problem = fm.models.from_functions(
        lambda key: None,
        lambda p, batch, key: batch["x"][:, 0],
        lambda p, batch: {"none": (batch["x"][:, 0], 0 * batch["x"][:, 0])},
    )
    assert np.isnan(evaluate(_on(problem, {}), {}, columns(np.random.default_rng(0), 3))["none"])


def test_problem_without_metrics_measures_nothing() -> None:
    problem = fm.models.from_functions(lambda key: None, lambda p, batch, key: batch["x"][:, 0])
    assert evaluate(_on(problem, {}), {}, columns(np.random.default_rng(0), 3)) == {}


def test_clients_are_measured_apart() -> None:
    problem = fm.models.logistic((4,), 3)
    params = problem.init(jax.random.key(0))
    rng = np.random.default_rng(0)
    clients = [
        {"x": rng.random((n, 4), np.float32), "y": rng.integers(0, 3, n).astype(np.int32)} for n in (3, 0, 1500, 1)
    ]
    apart = evaluate_clients(_on(problem, params), params, clients)
    for i, own in enumerate(clients):
        alone = evaluate(_on(problem, params), params, own) if len(own["y"]) else {"accuracy": np.nan, "loss": np.nan}
        for name, value in alone.items():
            np.testing.assert_allclose(apart[name][i], value, rtol=1e-6)


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("n", [1, 5, 1500])
def test_devices_share_a_batch(devices: int, n: int) -> None:
    """Each has its part of it, and no example counts twice."""
    seen = []

    def metrics(params, batch):
        seen.append(batch["y"].shape[0])
        return PROBLEM.metrics(params, batch)

    data = columns(np.random.default_rng(0), n)
    found = evaluate(_on(dataclasses.replace(PROBLEM, metrics=metrics), devices=devices), model(), data)
    assert found == pytest.approx(_by_hand(model(), data), rel=1e-12)
    assert set(seen[1:]) == {max(1, {1: 1, 5: 8, 1500: 1024}[n] // devices)}  # the first trace looks at shapes
