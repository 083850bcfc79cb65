"""The result of an evaluation: its spread over clients, plain values and one line."""

import json

import numpy as np
import pytest

import fedmime as fm
from engine.linear import PARAMS, PLAIN, PROBLEM, by_hand, linear_clients


def test_spread_over_clients() -> None:
    clients = fm.data.from_arrays(linear_clients([1 + i % 5 for i in range(27)]))
    found = fm.evaluate(PROBLEM, PARAMS, clients)
    for name, sign in (("accuracy", 1), ("loss", -1)):
        values = np.array([by_hand(PARAMS, clients.client_at(i))[name] for i in range(27)])
        spread = found.spread(name)
        ordered = sign * np.sort(sign * values)  # the worst first
        assert spread.worst_decile == pytest.approx(ordered[:2].mean(), rel=1e-12)
        assert spread[:4] == pytest.approx((values.mean(), values.std(), values.min(), values.max()), rel=1e-12)
        place = 0.1 * np.arange(1, 10) * 26
        assert spread.deciles == pytest.approx(np.interp(place, np.arange(27), np.sort(values)), rel=1e-12)


def test_plain_values_and_one_line() -> None:
    clients = linear_clients((4, 6, 9))
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


def test_spread_names_the_metrics_there_are() -> None:
    found = fm.evaluate(PROBLEM, PARAMS, PLAIN)
    with pytest.raises(fm.ConfigError, match="metric must be one of 'accuracy', 'loss', got 'recall'"):
        found.spread("recall")
    with pytest.raises(fm.ConfigError, match="nothing was fine-tuned"):
        found.spread("loss", finetuned=True)
