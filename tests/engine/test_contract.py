"""A loss or a metric of another shape than its examples' ends in one line before it is used, wherever it is used."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import fedmime as fm
from engine.setting import CLASSES, DIM, PROBLEM, a, columns, model, population
from fedmime.engine.metrics import client_sums, mean_metrics
from fedmime.experiments import train
from fedmime.experiments.setting import Setting
from fedmime.experiments.sweep_rounds import Lockstep
from fedmime.experiments.sweep_trial import Shelf


def _logits(params: Any, batch: Any) -> Any:
    return batch["x"] @ params["w"] + params["b"]


LOSSES: dict[str, Callable[..., Any]] = {
    "[n, 1]": lambda p, batch, key: _logits(p, batch)[:, :1] ** 2,
    "[n, n]": lambda p, batch, key: (_logits(p, batch)[:, :1] - batch["y"]) ** 2,
    f"[n, {CLASSES}]": lambda p, batch, key: _logits(p, batch) ** 2,
    f"[{CLASSES}]": lambda p, batch, key: _logits(p, batch).mean(axis=0),
    "[]": lambda p, batch, key: _logits(p, batch).mean(),
    "a tuple": lambda p, batch, key: (_logits(p, batch)[:, 0],),
}


def _with(loss: Callable[..., Any]) -> Any:
    return dataclasses.replace(PROBLEM, name="mine", loss=loss)


def _cohort(n: int) -> fm.Cohort:
    data = columns(np.random.default_rng(0), n)
    return fm.Cohort.from_batches([{name: column[None] for name, column in data.items()}])


def _refused(call: Callable[[], object], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("shape", LOSSES)
@pytest.mark.parametrize("examples", [1, CLASSES, DIM])
def test_a_loss_has_one_number_for_each_example(shape: str, examples: int) -> None:
    """Also where a mini-batch has as many examples as there are classes, so that shapes would agree by chance."""
    algorithm, problem = a.fedavg(0.1), _with(LOSSES[shape])
    state = algorithm.init(model())
    words = f"mine: loss must have shape [n], got {shape}"
    _refused(lambda: fm.run_round(algorithm, problem, state, _cohort(examples)), fm.ConfigError, words)


def test_a_run_and_a_sweep_look_before_their_first_round() -> None:
    words, seen = "loss must have shape [n], got [n, 1]", []
    problem = _with(LOSSES["[n, 1]"])
    given = {"rounds": 2, "cohort_size": 2, "on_round": lambda *_: seen.append(1)}
    _refused(lambda: fm.simulate(a.fedavg(0.1), problem, population([3, 4]), **given), fm.ConfigError, words)
    prepared = train.prepare(Setting(task="digits-logistic", rounds=2))
    wide = dataclasses.replace(prepared.problem, loss=lambda *given: prepared.problem.loss(*given)[:, None])
    points = [dataclasses.replace(prepared, problem=wide)]
    lockstep = Lockstep(points, [{}], [2], Shelf(None), fm.backends.local())
    _refused(lambda: lockstep.advance(lockstep.trials, 2, lambda: seen.append(1)), fm.ConfigError, words)
    assert not seen


def test_a_loss_is_a_floating_point_number() -> None:
    algorithm, problem = a.fedavg(0.1), _with(lambda p, batch, key: batch["y"])
    call = lambda: fm.run_round(algorithm, problem, algorithm.init(model()), _cohort(3))
    _refused(call, fm.ConfigError, "mine: loss must hold floating-point numbers, got int64")


def _on(problem: Any) -> Any:
    return fm.backends.local().start(problem, model())


METRICS: dict[str, Callable[..., Any]] = {
    "mine: metrics['m'] must be a pair (values, weights) of shapes [n] and [n], got [n, 1] and [n]": lambda p, b: {
        "m": (_logits(p, b)[:, :1], jnp.ones(len(b["y"])))
    },
    "got [] and []": lambda p, b: {"m": (jnp.ones(()), jnp.ones(()))},
    "got [n]": lambda p, b: {"m": _logits(p, b)[:, 0]},
    "mine: metrics must be a dict {name: (values, weights)}, got tuple": lambda p, b: (b["y"], b["y"]),
}


@pytest.mark.parametrize("words", METRICS)
def test_metrics_are_pairs_with_an_entry_for_each_example(words: str) -> None:
    problem = dataclasses.replace(PROBLEM, name="mine", metrics=METRICS[words])
    data = columns(np.random.default_rng(0), 5)
    _refused(lambda: mean_metrics(_on(problem), model(), data), fm.ConfigError, words)
    everyone = lambda: client_sums(_on(problem), model(), population([5]), np.arange(1))
    _refused(everyone, fm.ConfigError, words)
    seen: list[object] = []
    run = lambda: fm.simulate(a.fedavg(0.1), problem, population([3]), 3, 1, on_round=lambda *_: seen.append(1))
    _refused(run, fm.ConfigError, words)
    assert not seen


def test_a_missing_field_is_named_with_those_there_are() -> None:
    problem = _with(lambda p, batch, key: _logits(p, batch)[:, 0] * batch["label"])
    run = lambda: fm.simulate(a.fedavg(0.1), problem, population([3]), 1, 1)
    _refused(run, fm.DataError, "mine: loss asks for 'label', which is missing; a batch has 'x', 'y'")
    problem = dataclasses.replace(PROBLEM, metrics=lambda p, batch: {"m": (batch["q"], batch["q"])})
    words = "metrics asks for 'q', which is missing; a batch has 'x', 'y'"
    _refused(lambda: mean_metrics(_on(problem), model(), columns(np.random.default_rng(0), 5)), fm.DataError, words)
