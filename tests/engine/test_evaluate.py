"""`fm.evaluate` against NumPy on a small linear problem: pooled, client by client, and after fine-tuning."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedmime as fm
from fedmime.batching import generator, mini_batches
from fedmime.engine.hold_out import Part

DIM = 3


def _loss(params, batch, key):
    return 0.5 * (batch["x"] @ params["w"] - batch["y"]) ** 2


def _metrics(params, batch):
    """The loss, and whether the sign is right, weighed by an example's own number as the metrics of an LSTM are."""
    right = (jnp.sign(batch["x"] @ params["w"]) == jnp.sign(batch["y"])).astype(batch["x"].dtype)
    return {"accuracy": (right, batch["x"][:, 0] ** 2), "loss": (_loss(params, batch, None), jnp.ones_like(right))}


PROBLEM = fm.models.from_functions(lambda key: {"w": jnp.zeros(DIM)}, _loss, _metrics, name="linear")
PARAMS = {"w": np.array([0.5, -1.0, 2.0])}


def _columns(rng: np.random.Generator, n: int) -> dict[str, np.ndarray]:
    return {"x": rng.normal(size=(n, DIM)), "y": rng.normal(size=n)}


def _clients(sizes, seed=0) -> dict[str, dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return {f"c{i}": _columns(rng, n) for i, n in enumerate(sizes)}


SIZES = (5, 1, 0, 40, 7, 12, 3, 9, 9, 2, 30, 4)
PLAIN = fm.data.from_arrays(_clients(SIZES))
# The test clients stand in another order; one of them never trains, and one has nothing to test on.
TESTED = fm.data.from_arrays(
    _clients(SIZES),
    test_clients=fm.data.from_arrays(
        {"new": _columns(np.random.default_rng(8), 4)}
        | dict(reversed(_clients((3, 6, 5, 0, 50, 2, 9, 1, 4, 8, 3, 2), seed=1).items()))
    ),
)


def _by_hand(params, data) -> dict[str, float]:
    out = data["x"] @ params["w"]
    right = np.sign(out) == np.sign(data["y"])
    return {
        "accuracy": float(np.average(right, weights=data["x"][:, 0] ** 2)),
        "loss": float(np.mean(0.5 * (out - data["y"]) ** 2)),
    }


def _steps(data, rows_of_steps, eta) -> dict[str, np.ndarray]:
    """SGD from the model, one step after another."""
    w = PARAMS["w"].copy()
    for rows in rows_of_steps:
        x, y = data["x"][rows], data["y"][rows]
        w = w - eta * x.T @ (x @ w - y) / len(rows)
    return {"w": w}


def test_pooled_and_every_client() -> None:
    found = fm.evaluate(PROBLEM, PARAMS, TESTED)
    tested = TESTED.test_clients
    assert found.pooled == pytest.approx(_by_hand(PARAMS, tested.pool()), rel=1e-12)
    assert (found.pooled_on, found.clients_on) == ("test", "test")
    assert found.ids == tuple(id_ for id_, n in zip(tested.ids, tested.sizes, strict=True) if n)
    for i, client in enumerate(found.ids):
        own = _by_hand(PARAMS, tested.client(client))
        assert {name: values[i] for name, values in found.clients.items()} == pytest.approx(own, rel=1e-12)
        assert found.examples[i] == len(tested.client(client)["y"])
    assert found.finetuned is None


def test_spread_over_clients() -> None:
    clients = fm.data.from_arrays(_clients([1 + i % 5 for i in range(27)]))
    found = fm.evaluate(PROBLEM, PARAMS, clients)
    for name, sign in (("accuracy", 1), ("loss", -1)):
        values = np.array([_by_hand(PARAMS, clients.client_at(i))[name] for i in range(27)])
        spread = found.spread(name)
        ordered = sign * np.sort(sign * values)  # the worst first
        assert spread.worst_decile == pytest.approx(ordered[:2].mean(), rel=1e-12)
        assert spread[:4] == pytest.approx((values.mean(), values.std(), values.min(), values.max()), rel=1e-12)
        place = 0.1 * np.arange(1, 10) * 26
        assert spread.deciles == pytest.approx(np.interp(place, np.arange(27), np.sort(values)), rel=1e-12)


def test_training_examples_without_test_examples() -> None:
    alone, asked = fm.evaluate(PROBLEM, PARAMS, PLAIN), fm.evaluate(PROBLEM, PARAMS, TESTED, split="train")
    for found in (alone, asked):
        assert (found.pooled_on, found.clients_on) == ("train", "train")
        assert found.pooled == pytest.approx(_by_hand(PARAMS, PLAIN.pool()), rel=1e-12)
        assert len(found.ids) == 11
    tested = fm.data.from_arrays(_clients((4, 2)), test=_columns(np.random.default_rng(5), 20))
    found = fm.evaluate(PROBLEM, PARAMS, tested)
    assert found.pooled == pytest.approx(_by_hand(PARAMS, tested.test), rel=1e-12)
    assert (found.pooled_on, found.clients_on) == ("test", "train")


def test_some_clients() -> None:
    everyone = fm.evaluate(PROBLEM, PARAMS, TESTED)
    some = fm.evaluate(PROBLEM, PARAMS, TESTED, clients=3)
    assert some.ids == (everyone.ids[0], everyone.ids[5], everyone.ids[-1])
    assert some.pooled == pytest.approx(everyone.pooled, rel=1e-12)  # the whole test set in any case
    named = fm.evaluate(PROBLEM, PARAMS, TESTED, clients=["c4", "new"])
    assert named.ids == ("c4", "new")
    assert named.clients["loss"][0] == pytest.approx(everyone.clients["loss"][everyone.ids.index("c4")], rel=1e-12)
    assert fm.evaluate(PROBLEM, PARAMS, TESTED, clients=100).ids == everyone.ids


@pytest.mark.parametrize("batch_size", [None, 4])
def test_finetuning_is_sgd_on_the_clients_own_training_examples(batch_size: int | None, fact) -> None:
    found = fm.evaluate(
        PROBLEM, PARAMS, TESTED, finetune=5, finetune_eta=0.1, finetune_batch_size=batch_size, seed=3, devices=2
    )
    assert (found.clients_on, found.hold_out) == ("test", None)
    assert set(found.ids) == {f"c{i}" for i in range(12)} - {"c2", "c3"}  # "new" and c2 never train, c3 has no test
    assert found.pooled == pytest.approx(_by_hand(PARAMS, TESTED.test_clients.pool()), rel=1e-12)
    for i, client in enumerate(found.ids):
        data = TESTED.client(client)
        rows, counts = mini_batches(len(data["y"]), batch_size, None, 5, generator(3, 0, TESTED.ids.index(client)))
        model = _steps(data, [row[:n] for row, n in zip(rows, counts, strict=True)], 0.1)
        own = _by_hand(model, TESTED.test_clients.client(client))
        for name, value in own.items():
            assert found.finetuned[name][i] == pytest.approx(value, rel=1e-10, abs=1e-12)
            fact("fine-tuned metrics against NumPy", abs(found.finetuned[name][i] - value) / max(abs(value), 1e-12))
        before = _by_hand(PARAMS, TESTED.test_clients.client(client))
        assert {name: values[i] for name, values in found.clients.items()} == pytest.approx(before, rel=1e-12)


def test_finetuning_is_measured_on_examples_held_out() -> None:
    found = fm.evaluate(PROBLEM, PARAMS, PLAIN, finetune=3, finetune_eta=0.1, finetune_batch_size=None, hold_out=0.4)
    held, rest = (Part(PLAIN, 0.4, 0, held=held) for held in (True, False))
    assert (found.pooled_on, found.clients_on, found.hold_out) == ("held out", "held out", 0.4)
    assert found.ids == tuple(f"c{i}" for i in (0, 3, 4, 5, 6, 7, 8, 9, 10, 11))  # those with two examples
    for i, client in enumerate(found.ids):
        position = PLAIN.ids.index(client)
        data = rest.client_at(position)
        model = _steps(data, [np.arange(len(data["y"]))] * 3, 0.1)
        for params, values in ((PARAMS, found.clients), (model, found.finetuned)):
            own = _by_hand(params, held.client_at(position))
            assert {name: value[i] for name, value in values.items()} == pytest.approx(own, rel=1e-10)


def test_parts_of_clients_are_disjoint_and_seeded() -> None:
    held, rest, other = (Part(PLAIN, 0.3, *how) for how in ((0, True), (0, False), (1, True)))
    np.testing.assert_array_equal(held.sizes, [2, 0, 0, 12, 2, 4, 1, 3, 3, 1, 9, 1])
    np.testing.assert_array_equal(held.sizes + rest.sizes, PLAIN.sizes)
    for i in range(len(SIZES)):
        both = np.concatenate([held.client_at(i)["y"], rest.client_at(i)["y"]])
        np.testing.assert_array_equal(np.sort(both), np.sort(PLAIN.client_at(i)["y"]))
        assert len(held.client_at(i)["y"]) == held.sizes[i]
    assert not np.array_equal(held.client_at(3)["y"], other.client_at(3)["y"])


def test_clients_that_never_trained_are_tuned_on_their_own_examples() -> None:
    strangers = fm.data.from_arrays({f"new{i}": _columns(np.random.default_rng(i), 10) for i in range(3)})
    clients = fm.data.from_arrays(_clients((4, 4)), test_clients=strangers)
    found = fm.evaluate(PROBLEM, PARAMS, clients, finetune=1, finetune_eta=0.1)
    assert (found.ids, found.clients_on, found.pooled_on) == (("new0", "new1", "new2"), "held out", "test")
    np.testing.assert_array_equal(found.examples, [2, 2, 2])


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
        return _loss(params, batch, key)

    def metrics(params, batch):
        traced.append(("metrics", batch["y"].shape[0]))
        return {"loss": (_loss(params, batch, None), jnp.ones_like(batch["y"]))}

    problem = dataclasses.replace(PROBLEM, loss=loss, metrics=metrics)
    clients = fm.data.from_arrays(_clients([2 + 5 * (i % 17) for i in range(150)]))
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
        return _loss(params, {"x": jnp.where(kept, batch["x"], 0), "y": batch["y"]}, key)

    problem = dataclasses.replace(PROBLEM, loss=loss)
    asked = {"finetune": 3, "finetune_eta": 0.1, "finetune_batch_size": None, "clients": ["c5", "c7"]}
    one, same, other = (fm.evaluate(problem, PARAMS, TESTED, **asked, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.finetuned["loss"], same.finetuned["loss"])
    assert not np.isclose(one.finetuned["loss"], other.finetuned["loss"]).any()
    for name, values in one.clients.items():
        np.testing.assert_array_equal(values, other.clients[name])


def test_sequences_are_weighed_by_their_tokens() -> None:
    problem = fm.models.char_lstm(vocabulary=7, embedding=2, hidden=4)
    params, rng = problem.init(jax.random.key(0)), np.random.default_rng(0)
    tokens = lambda n: {name: rng.integers(0, 7, (n, 5)).astype(np.int32) for name in ("x", "y")}
    clients = fm.data.from_arrays({f"c{i}": tokens(4 + i) for i in range(3)})
    found = fm.evaluate(problem, params, clients)
    for i in range(3):
        values, weights = problem.metrics(params, clients.client_at(i))["accuracy"]
        np.testing.assert_allclose(found.clients["accuracy"][i], np.average(values, weights=weights), rtol=1e-6)


def test_problem_without_metrics_reports_the_loss() -> None:
    problem = fm.models.from_functions(PROBLEM.init, _loss)
    clients = fm.data.from_arrays(_clients((4, 6)), test=_columns(np.random.default_rng(5), 20))
    run = fm.simulate(fm.algorithms.fedavg(0.1), problem, clients, rounds=2, cohort_size=2, evaluate_every=2)
    found = fm.evaluate(problem, run.params, clients)
    expected = _by_hand({"w": np.asarray(run.params["w"])}, clients.test)["loss"]
    assert run.history["test_loss"][-1] == pytest.approx(expected, rel=1e-12)
    assert found.pooled == {"loss": pytest.approx(expected, rel=1e-12)}


def test_plain_values_and_one_line() -> None:
    clients = _clients((4, 6, 9))
    clients["c1"]["x"][:, 0] = 0  # the weights of its accuracy
    population = fm.data.from_arrays(clients)
    found = fm.evaluate(PROBLEM, PARAMS, population, finetune=2, finetune_eta=0.1)
    told = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert told["each"]["id"] == ["c0", "c1", "c2"]
    assert told["each"]["accuracy"][1] is None
    assert told["each"]["finetuned_loss"] == found.finetuned["loss"].tolist()
    assert told["spread"]["loss"] == {**found.spread("loss")._asdict(), "deciles": list(found.spread("loss").deciles)}
    assert told["finetuned"]["loss"]["mean"] == found.finetuned["loss"].mean()
    assert told["finetuning"] == {"steps": 2, "eta": 0.1, "batch_size": 10, "seed": 0, "hold_out": 0.2}
    assert "each" not in found.to_dict(each=False)
    assert found.spread("accuracy").mean == pytest.approx(np.nanmean(found.clients["accuracy"]))
    assert repr(found).startswith("Evaluation(held out: accuracy ")
    assert "after 2 steps" in repr(found)
    assert "\n" not in repr(found)


def test_a_client_whose_data_cannot_be_used_is_not_tuned(caplog) -> None:
    clients = _clients((4, 6, 9))
    clients["c1"]["x"][:] = np.nan
    found = fm.evaluate(PROBLEM, PARAMS, fm.data.from_arrays(clients), finetune=2, finetune_eta=0.1)
    np.testing.assert_array_equal(np.isnan(found.finetuned["loss"]), [False, True, False])


REFUSED = {
    "split must be one of 'test', 'train', got 'valid'": {"split": "valid"},
    "clients must be a whole number of at least 1, got 0": {"clients": 0},
    "clients must be None, a number or a list of ids, got 'c0'": {"clients": "c0"},
    "clients must be None, a number or a list of ids, got []": {"clients": []},
    "clients: there is no 'nobody'; ids look like 'c0'": {"clients": ["nobody"]},
    "clients: 'c2' cannot be measured, it has no examples": {"clients": ["c2"]},
    "clients: 'c1' cannot be measured, it has fewer than two": {"clients": ["c1"], "finetune": 1, "finetune_eta": 1},
    "batch_size must be a whole number of at least 1, got 0": {"batch_size": 0},
    "finetune=3 needs finetune_eta": {"finetune": 3},
    "finetune must be a whole number of at least 1, got 0": {"finetune": 0, "finetune_eta": 0.1},
    "finetune_eta must be positive, got -1": {"finetune": 1, "finetune_eta": -1},
    "finetune_batch_size must": {"finetune": 1, "finetune_eta": 0.1, "finetune_batch_size": 0},
    "hold_out must lie in (0, 1), got 1": {"hold_out": 1},
    "seed must be": {"seed": -1},
    "so split must be 'test', got 'train'": {"finetune": 1, "finetune_eta": 0.1, "split": "train"},
    "gave client 'c0' a model that is not finite; lower finetune_eta": {"finetune": 900, "finetune_eta": 1e3},
    "params must have the arrays of problem.init, {'w': (3,)}, got {'w': (2,)}": {"params": {"w": np.zeros(2)}},
    "params must be a pytree of floating-point arrays": {"params": {"w": [1, 2, 3]}},
    "population must come from fm.data": {"population": {}},
    "backend must be one of": {"backend": "cloud"},
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_does_not_fit_is_said_in_one_line(words: str) -> None:
    asked = {"params": PARAMS, "population": PLAIN} | REFUSED[words]
    with pytest.raises(fm.FedmimeError) as error:
        fm.evaluate(PROBLEM, asked.pop("params"), asked.pop("population"), **asked)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_spread_names_the_metrics_there_are() -> None:
    found = fm.evaluate(PROBLEM, PARAMS, PLAIN)
    with pytest.raises(fm.ConfigError, match="metric must be one of 'accuracy', 'loss', got 'recall'"):
        found.spread("recall")
    with pytest.raises(fm.ConfigError, match="nothing was fine-tuned"):
        found.spread("loss", finetuned=True)


def test_data_that_the_problem_cannot_take_is_named() -> None:
    problem = fm.models.logistic((4,), 3)
    with pytest.raises(fm.DataError, match="client 'c0': logistic"):
        fm.evaluate(problem, problem.init(jax.random.key(0)), PLAIN)
