"""Metrics are exact weighted means over all examples, the last partial batch included."""

import dataclasses

import numpy as np
import pytest

import fedmime as fm
from engine.setting import PROBLEM, columns, model, population
from fedmime import backends
from fedmime.engine.metrics import client_sums, mean_metrics, means, pooled, stream_metrics
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
    assert mean_metrics(_on(PROBLEM), params, data) == pytest.approx(_by_hand(params, data), rel=1e-12)


def test_padding_cannot_leak() -> None:
    """The padded rows repeat the last one: a batch that ends in an overflow counts it once."""
    data = columns(np.random.default_rng(0), 5)
    data["x"][-1] *= 1e200
    params = model()
    assert mean_metrics(_on(PROBLEM), params, data)["accuracy"] == _accuracy(params, data)


def _accuracy(params, data) -> float:
    return float(np.mean((data["x"] @ params["w"] + params["b"]).argmax(axis=1) == data["y"]))


def test_metric_without_weight_is_nan() -> None:
    problem = fm.models.from_functions(
        lambda key: None,
        lambda p, batch, key: batch["x"][:, 0],
        lambda p, batch: {"none": (batch["x"][:, 0], 0 * batch["x"][:, 0])},
    )
    assert np.isnan(mean_metrics(_on(problem, {}), {}, columns(np.random.default_rng(0), 3))["none"])


@pytest.mark.parametrize("backend", [backends.local(), backends.reference()], ids=["local", "reference"])
def test_problem_without_metrics_is_measured_by_its_loss(backend) -> None:
    problem = dataclasses.replace(PROBLEM, metrics=fm.models.from_functions(PROBLEM.init, PROBLEM.loss).metrics)
    data = columns(np.random.default_rng(0), 1030)
    found = mean_metrics(backend.start(problem, model()), model(), data)
    logits = data["x"] @ model()["w"] + model()["b"]
    losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(1030), data["y"]]
    assert found == {"loss": pytest.approx(losses.mean(), rel=1e-12)}


def test_loss_that_takes_the_place_of_metrics_has_an_entry_for_each_example() -> None:
    problem = fm.models.from_functions(PROBLEM.init, lambda p, batch, key: PROBLEM.loss(p, batch, key).mean())
    with pytest.raises(fm.ConfigError, match=r"custom: loss must have shape \[n\], got \[\]"):
        mean_metrics(_on(problem), model(), columns(np.random.default_rng(0), 3))


def test_clients_are_measured_apart() -> None:
    clients = population((3, 0, 1500, 1, 700))
    found = client_sums(_on(PROBLEM), model(), clients, np.arange(5))
    apart = means(found)
    for i in range(5):
        own = clients.client_at(i)
        alone = _by_hand(model(), own) if len(own["y"]) else {"accuracy": np.nan, "loss": np.nan}
        assert {name: values[i] for name, values in apart.items()} == pytest.approx(alone, rel=1e-12, nan_ok=True)
    assert pooled(found) == pytest.approx(_by_hand(model(), clients.pool()), rel=1e-12)


@pytest.mark.parametrize("batch_size", [1, 7, 64, 1024])
def test_parts_make_one_mean(batch_size: int) -> None:
    """Whatever the widths of batches, every example counts once."""
    clients = population((5, 0, 64, 1, 130))
    parts = map(clients.client_at, range(5))
    found = stream_metrics(_on(PROBLEM), model(), parts, 200, batch_size)
    assert found == pytest.approx(_by_hand(model(), clients.pool()), rel=1e-12)


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("n", [1, 5, 1500])
def test_devices_share_a_batch(devices: int, n: int) -> None:
    """Each has its part of it, and no example counts twice."""
    seen = []

    def metrics(params, batch):
        seen.append(batch["y"].shape[0])
        return PROBLEM.metrics(params, batch)

    data = columns(np.random.default_rng(0), n)
    found = mean_metrics(_on(dataclasses.replace(PROBLEM, metrics=metrics), devices=devices), model(), data)
    assert found == pytest.approx(_by_hand(model(), data), rel=1e-12)
    assert set(seen[1:]) == {max(1, {1: 1, 5: 8, 1500: 1024}[n] // devices)}  # the first trace looks at shapes
