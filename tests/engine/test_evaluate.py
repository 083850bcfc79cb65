"""`fm.evaluate` against NumPy on a small linear problem: pooled, client by client, and after fine-tuning."""

import jax
import numpy as np
import pytest

import fedmime as fm
from engine.linear import PARAMS, PLAIN, PROBLEM, TESTED, by_hand, linear_clients, linear_columns, squared_loss


def test_pooled_and_every_client() -> None:
    found = fm.evaluate(PROBLEM, PARAMS, TESTED)
    tested = TESTED.test_clients
    assert found.pooled == pytest.approx(by_hand(PARAMS, tested.pool()), rel=1e-12)
    assert (found.pooled_on, found.clients_on) == ("test", "test")
    assert found.ids == tuple(id_ for id_, n in zip(tested.ids, tested.sizes, strict=True) if n)
    for i, client in enumerate(found.ids):
        own = by_hand(PARAMS, tested.client(client))
        assert {name: values[i] for name, values in found.clients.items()} == pytest.approx(own, rel=1e-12)
        assert found.examples[i] == len(tested.client(client)["y"])
    assert found.finetuned is None


def test_training_examples_without_test_examples() -> None:
    alone, asked = fm.evaluate(PROBLEM, PARAMS, PLAIN), fm.evaluate(PROBLEM, PARAMS, TESTED, split="train")
    for found in (alone, asked):
        assert (found.pooled_on, found.clients_on) == ("train", "train")
        assert found.pooled == pytest.approx(by_hand(PARAMS, PLAIN.pool()), rel=1e-12)
        assert len(found.ids) == 11
    tested = fm.data.from_arrays(linear_clients((4, 2)), test=linear_columns(np.random.default_rng(5), 20))
    found = fm.evaluate(PROBLEM, PARAMS, tested)
    assert found.pooled == pytest.approx(by_hand(PARAMS, tested.test), rel=1e-12)
    assert (found.pooled_on, found.clients_on) == ("test", "train")


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
    problem = fm.models.from_functions(PROBLEM.init, squared_loss)
    clients = fm.data.from_arrays(linear_clients((4, 6)), test=linear_columns(np.random.default_rng(5), 20))
    run = fm.simulate(fm.algorithms.fedavg(0.1), problem, clients, rounds=2, cohort_size=2, evaluate_every=2)
    found = fm.evaluate(problem, run.params, clients)
    expected = by_hand({"w": np.asarray(run.params["w"])}, clients.test)["loss"]
    assert run.history["test_loss"][-1] == pytest.approx(expected, rel=1e-12)
    assert found.pooled == {"loss": pytest.approx(expected, rel=1e-12)}


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


def test_data_that_the_problem_cannot_take_is_named() -> None:
    problem = fm.models.logistic((4,), 3)
    with pytest.raises(fm.DataError, match="client 'c0': logistic"):
        fm.evaluate(problem, problem.init(jax.random.key(0)), PLAIN)
