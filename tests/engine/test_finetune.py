"""Fine-tuning client by client: SGD on a client's own examples, alike in any company."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedmime as fm
from engine.linear import (
    PARAMS,
    PLAIN,
    PROBLEM,
    TESTED,
    by_hand,
    linear_clients,
    squared_loss,
    steps_of_sgd,
)
from fedmime.batching import generator, mini_batches
from fedmime.engine.hold_out import Part


@pytest.mark.parametrize("batch_size", [None, 4])
def test_finetuning_is_sgd_on_the_clients_own_training_examples(batch_size: int | None, fact) -> None:
    found = fm.evaluate(
        PROBLEM, PARAMS, TESTED, finetune=5, finetune_eta=0.1, finetune_batch_size=batch_size, seed=3, devices=2
    )
    assert (found.clients_on, found.hold_out) == ("test", None)
    assert set(found.ids) == {f"c{i}" for i in range(12)} - {"c2", "c3"}  # "new" and c2 never train, c3 has no test
    assert found.pooled == pytest.approx(by_hand(PARAMS, TESTED.test_clients.pool()), rel=1e-12)
    for i, client in enumerate(found.ids):
        data = TESTED.client(client)
        rows, counts = mini_batches(len(data["y"]), batch_size, None, 5, generator(3, 0, TESTED.ids.index(client)))
        model = steps_of_sgd(data, [row[:n] for row, n in zip(rows, counts, strict=True)], 0.1)
        own = by_hand(model, TESTED.test_clients.client(client))
        for name, value in own.items():
            assert found.finetuned[name][i] == pytest.approx(value, rel=1e-10, abs=1e-12)
            fact("fine-tuned metrics against NumPy", abs(found.finetuned[name][i] - value) / max(abs(value), 1e-12))
        before = by_hand(PARAMS, TESTED.test_clients.client(client))
        assert {name: values[i] for name, values in found.clients.items()} == pytest.approx(before, rel=1e-12)


def test_finetuning_is_measured_on_examples_held_out() -> None:
    found = fm.evaluate(PROBLEM, PARAMS, PLAIN, finetune=3, finetune_eta=0.1, finetune_batch_size=None, hold_out=0.4)
    held, rest = (Part(PLAIN, 0.4, 0, held=held) for held in (True, False))
    assert (found.pooled_on, found.clients_on, found.hold_out) == ("held out", "held out", 0.4)
    assert found.ids == tuple(f"c{i}" for i in (0, 3, 4, 5, 6, 7, 8, 9, 10, 11))  # those with two examples
    for i, client in enumerate(found.ids):
        position = PLAIN.ids.index(client)
        data = rest.client_at(position)
        model = steps_of_sgd(data, [np.arange(len(data["y"]))] * 3, 0.1)
        for params, values in ((PARAMS, found.clients), (model, found.finetuned)):
            own = by_hand(params, held.client_at(position))
            assert {name: value[i] for name, value in values.items()} == pytest.approx(own, rel=1e-10)


def test_a_client_is_tuned_alike_in_any_company(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"finetune": 2, "finetune_eta": 0.05, "finetune_batch_size": 2}
    everyone = fm.evaluate(PROBLEM, PARAMS, TESTED, **asked)
    monkeypatch.setattr("fedmime.engine.finetune._MOST_CLIENTS", 3)  # several groups
    for found in (
        fm.evaluate(PROBLEM, PARAMS, TESTED, **asked, batch_size=2),
        fm.evaluate(PROBLEM, PARAMS, TESTED, ["c7", "c0"], **asked),
        fm.evaluate(PROBLEM, PARAMS, TESTED, ["c7", "c0"], **asked, backend="reference"),
    ):
        for i, client in enumerate(found.ids):
            for name, values in found.finetuned.items():
                assert values[i] == pytest.approx(everyone.finetuned[name][everyone.ids.index(client)], rel=1e-12)


def test_clients_of_all_sizes_share_programs() -> None:
    """The loss is traced for one width of mini-batches, the metrics for one width of batches."""
    traced = []

    def loss(params, batch, key):
        traced.append(("loss", batch["y"].shape[0]))
        return squared_loss(params, batch, key)

    def metrics(params, batch):
        traced.append(("metrics", batch["y"].shape[0]))
        return {"loss": (squared_loss(params, batch, None), jnp.ones_like(batch["y"]))}

    problem = dataclasses.replace(PROBLEM, loss=loss, metrics=metrics)
    clients = fm.data.from_arrays(linear_clients([2 + 5 * (i % 17) for i in range(150)]))
    asked = {"finetune": 2, "finetune_eta": 0.01, "devices": 1}
    fm.evaluate(problem, PARAMS, clients, **asked)
    before = len(traced)
    fm.evaluate(problem, {"w": PARAMS["w"] + 1}, clients, **asked)
    assert len(traced) == before
    # At most a width for the model, one for models of clients, the two of mini-batches, and one to look at shapes.
    assert len({n for what, n in traced if what == "metrics"}) <= 3
    assert len({n for what, n in traced if what == "loss"}) <= 3


def test_random_numbers_of_the_loss_are_seeded_and_not_in_the_metrics() -> None:
    """Fine-tuning drops out inputs by seed and client; metrics have no key."""

    def loss(params, batch, key):
        kept = jax.random.bernoulli(key, 0.5, batch["x"].shape)
        return squared_loss(params, {"x": jnp.where(kept, batch["x"], 0), "y": batch["y"]}, key)

    problem = dataclasses.replace(PROBLEM, loss=loss)
    asked = {"finetune": 3, "finetune_eta": 0.1, "finetune_batch_size": None, "clients": ["c5", "c7"]}
    one, same, other = (fm.evaluate(problem, PARAMS, TESTED, **asked, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.finetuned["loss"], same.finetuned["loss"])
    assert not np.isclose(one.finetuned["loss"], other.finetuned["loss"]).any()
    for name, values in one.clients.items():
        np.testing.assert_array_equal(values, other.clients[name])


def test_a_client_whose_data_cannot_be_used_is_not_tuned(caplog) -> None:
    clients = linear_clients((4, 6, 9))
    clients["c1"]["x"][:] = np.nan
    found = fm.evaluate(PROBLEM, PARAMS, fm.data.from_arrays(clients), finetune=2, finetune_eta=0.1)
    np.testing.assert_array_equal(np.isnan(found.finetuned["loss"]), [False, True, False])
