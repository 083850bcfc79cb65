"""The engine against a plain loop: five models × five algorithms, partial batches, one-example clients, dropout."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedmime as fm
from engine import plain
from fedmime.engine import plan
from fedmime.engine.plan import Layout
from fedmime.engine.schedule import Schedule

ETA, BETA, CLASSES, LENGTH, TOKENS = 0.02, 0.6, 5, 7, 11
SIZES = (1, 9, 5, 9, 5)  # with mini-batches of 4: whole ones, partial ones of one, a client of one


def _images(n: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {"x": rng.random((n, 6, 8, 1), np.float32), "y": rng.integers(0, CLASSES, n).astype(np.int32)}


def _text(n: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    tokens = rng.integers(1, TOKENS, (n, LENGTH + 1)).astype(np.int32)
    tokens[np.arange(LENGTH + 1) > rng.integers(3, LENGTH + 1, (n, 1))] = 0
    return {"x": tokens[:, :-1], "y": tokens[:, 1:]}


MODELS: dict[str, tuple[Any, Any]] = {
    "logistic": (fm.models.logistic((6, 8, 1), CLASSES), _images),
    "mlp": (fm.models.mlp((6, 8, 1), CLASSES, (6, 5)), _images),
    "cnn": (fm.models.cnn((6, 8, 1), CLASSES), _images),
    "char_lstm": (fm.models.char_lstm(TOKENS, 3, 4, 2), _text),
    "word_lstm": (dataclasses.replace(fm.models.word_lstm(TOKENS, 3, 4), widths=1), _text),  # less to compile
}
WIDE: dict[str, tuple[Any, Any]] = {  # wide enough for the kernels, and with factors
    "wide mlp": (fm.models.mlp((6, 8, 1), 17, (40, 20)), _images),
    "cnn without dropout": (fm.models.cnn((6, 8, 1), 17, 0.0), _images),
}
A, MOMENTUM = fm.algorithms, fm.optimizers.momentum(BETA)
ALGORITHMS: dict[str, tuple[Any, Any]] = {
    "fedavg": (A.fedavg(ETA), lambda p, s: plain.fedavg(p, s, ETA)),
    "mime_lite": (A.mime_lite(MOMENTUM, ETA), lambda p, s: plain.mime(p, s, ETA, BETA, False)),
    "mime": (A.mime(MOMENTUM, ETA), lambda p, s: plain.mime(p, s, ETA, BETA, True)),
    "mime_mvr": (A.mime_mvr(ETA, BETA, init_rounds=0), lambda p, s: plain.mime_mvr(p, s, ETA, BETA)),
    "scaffold": (A.scaffold(ETA), lambda p, s: plain.scaffold(p, s, ETA)),
}
KEY = jax.random.key(3)
ROUNDS = 2


def _population(model: str) -> Any:
    rng = np.random.default_rng(5)
    return fm.data.from_arrays({f"c{i}": (MODELS | WIDE)[model][1](n, rng) for i, n in enumerate((*SIZES, 5, 9))})


def _plain(model: str, algorithm: str, epochs: int) -> Any:
    problem = (MODELS | WIDE)[model][0]
    x = problem.init(KEY)
    zero = jax.tree.map(jnp.zeros_like, x)
    state: dict[str, Any] = {"x": x, "m": zero, "old": x, "c": zero, "kept": {}}
    # which random numbers a full gradient takes is part of the engine's rules, and matters only with dropout
    once = epochs == 1 and algorithm in ("mime", "mime_mvr")
    for t in range(ROUNDS):
        cohort = _schedule(epochs).cohort(ALGORITHMS[algorithm][0], _population(model), t)
        state |= ALGORITHMS[algorithm][1](plain.Plain(problem, cohort, KEY, t, once), state)
    return state["x"]


def _schedule(epochs: int) -> Schedule:
    return Schedule(len(SIZES), 4, epochs, None, 0, "examples")


def _engine(model: str, algorithm: str, epochs: int, dtype: Any, layout: Layout) -> Any:
    problem, chosen = (MODELS | WIDE)[model][0], ALGORITHMS[algorithm][0]
    state = chosen.init(jax.tree.map(lambda a: a.astype(dtype), problem.init(KEY)))
    for t in range(ROUNDS):
        cohort = _schedule(epochs).cohort(chosen, _population(model), t)
        state, info = fm.run_round(chosen, problem, state, cohort, KEY, layout=layout, devices=layout.devices)
        assert not info.abandoned
    return fm.params(state)


def _error(ours: Any, expected: Any) -> float:
    flat = [np.concatenate([np.ravel(np.asarray(a, np.float64)) for a in jax.tree.leaves(t)]) for t in (ours, expected)]
    return float(np.abs(flat[0] - flat[1]).max() / np.abs(flat[1]).max())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("model", MODELS)
def test_agrees_with_a_plain_loop(model: str, algorithm: str, fact) -> None:
    epochs = 2 if algorithm == "mime_lite" else 1
    expected = _plain(model, algorithm, epochs)
    chunk = MODELS[model][0].chunk
    error = _error(_engine(model, algorithm, epochs, jnp.float64, Layout(2, chunk)), expected)
    fact("model × algorithm against a plain loop, relative error in float64", error)
    assert error <= 1e-10
    if algorithm in ("fedavg", "mime"):
        single = _error(_engine(model, algorithm, epochs, jnp.float32, Layout(1, chunk)), expected)
        fact("model × algorithm against a plain loop, relative error in float32", single)
        assert single <= 5e-5


@pytest.mark.parametrize("model", ["mlp", "char_lstm"])
def test_several_epochs_of_mime_agree_with_a_plain_loop(model: str) -> None:
    expected = _plain(model, "mime", 2)
    assert _error(_engine(model, "mime", 2, jnp.float64, Layout(2, MODELS[model][0].chunk)), expected) <= 1e-10


@pytest.mark.parametrize(
    ("algorithm", "epochs"),
    [("fedavg", 1), ("mime_lite", 2), ("mime", 1), ("mime", 2), ("mime_mvr", 1), ("scaffold", 1)],
)
@pytest.mark.parametrize("model", WIDE)
def test_models_with_factors_agree_with_a_plain_loop(model: str, algorithm: str, epochs: int, fact) -> None:
    expected = _plain(model, algorithm, epochs)
    error = _error(_engine(model, algorithm, epochs, jnp.float32, Layout(2, 7)), expected)
    fact("models with factors against a plain loop, relative error in float32", error)
    assert error <= 5e-5
    if algorithm == "mime":
        assert _error(_engine(model, algorithm, epochs, jnp.float64, Layout(2, 7)), expected) <= 1e-10


@pytest.mark.parametrize("layout", [Layout(1, 1), Layout(2, 256, lanes=2)], ids=["chunks of one", "two lanes"])
@pytest.mark.parametrize("model", WIDE)
def test_factors_on_other_layouts(model: str, layout: Layout) -> None:
    expected = _plain(model, "mime", 1)
    assert _error(_engine(model, "mime", 1, jnp.float32, layout), expected) <= 5e-5


@pytest.mark.parametrize("algorithm", ["mime", "scaffold"])
@pytest.mark.parametrize(
    "layout",
    [
        Layout(1, 256),
        Layout(2, 8),
        Layout(2, 256, lanes=2),
        Layout(1, 256, lanes=3, masked=True),
        Layout(2, 256, masked=True),
    ],
    ids=lambda layout: f"{layout.devices}x{layout.lanes}{'-masked' * layout.masked}-{layout.chunk}",
)
def test_any_layout_gives_the_same_round(algorithm: str, layout: Layout) -> None:
    expected = _plain("mlp", algorithm, 1)
    assert _error(_engine("mlp", algorithm, 1, jnp.float64, layout), expected) <= 1e-10


@pytest.mark.parametrize("algorithm", ["mime", "mime_lite", "scaffold"])
def test_waves_give_the_same_round(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = _plain("logistic", algorithm, 2)
    monkeypatch.setattr(plan, "WAVE_BYTES", 4000)
    population = _population("logistic")
    assert len(plan.waves_of(_schedule(2).cohort(ALGORITHMS[algorithm][0], population, 0))) > 1
    assert _error(_engine("logistic", algorithm, 2, jnp.float64, Layout(2, 256)), expected) <= 1e-10


def test_a_fixed_layout_is_bit_identical() -> None:
    first, second = (_engine("cnn", "mime", 1, jnp.float32, Layout(2, 10)) for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, first, second)
