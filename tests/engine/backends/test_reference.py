"""The compiled back end against the reference one: models, devices, waves, random numbers; and its errors.

Algorithms, bases and modes are compared in tests/algorithms/test_transcription.py.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedmime as fm
from algorithms.test_transcription import relative_error
from fedmime.engine.backends.local import backend as local
from fedmime.engine.backends.local.layout import Layout
from fedmime.engine.backends.specification import Local
from fedmime.engine.sampling import Schedule

ETA, CLASSES, LENGTH, TOKENS, ROUNDS = 0.02, 5, 7, 11, 2
SIZES = (1, 5, 4, 5, 5)  # with mini-batches of 4: whole ones, partial ones of one, a client of one
KEY = jax.random.key(3)
A, MOMENTUM = fm.algorithms, fm.optimizers.momentum(0.6)


def _images(n: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {"x": rng.random((n, 6, 8, 1), np.float32), "y": rng.integers(0, CLASSES, n).astype(np.int32)}


def _text(n: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    tokens = rng.integers(1, TOKENS, (n, LENGTH + 1)).astype(np.int32)
    tokens[np.arange(LENGTH + 1) > rng.integers(3, LENGTH + 1, (n, 1))] = 0
    return {"x": tokens[:, :-1], "y": tokens[:, 1:]}


MODELS: dict[str, tuple[Any, Any]] = {
    "logistic": (fm.models.logistic((6, 8, 1), CLASSES), _images),
    "mlp": (fm.models.mlp((6, 8, 1), CLASSES, (6, 5)), _images),
    "wide mlp": (fm.models.mlp((6, 8, 1), 17, (40, 20)), _images),  # wide enough for the kernels
    "cnn": (fm.models.cnn((6, 8, 1), CLASSES), _images),
    "cnn without dropout": (fm.models.cnn((6, 8, 1), 17, 0.0), _images),
    "char_lstm": (fm.models.char_lstm(TOKENS, 3, 4, 2), _text),
    "word_lstm": (fm.models.word_lstm(TOKENS, 3, 4), _text),
}
ALGORITHMS: dict[str, Any] = {
    "fedavg": A.fedavg(ETA),
    "mime_lite": A.mime_lite(MOMENTUM, ETA),
    "mime": A.mime(MOMENTUM, ETA),
    "mime_mvr": A.mime_mvr(ETA, 0.6, init_rounds=0),
    "scaffold": A.scaffold(ETA),
    "split": A.mime(MOMENTUM, ETA, split=True),
    "drawn": A.mime_lite_mvr(ETA, 0.6, output="random"),
}


@functools.cache
def _whole(model: str) -> Any:
    """The problem with one program for its loss, for the reference: operation by operation takes hundreds of them."""
    problem = MODELS[model][0]
    return dataclasses.replace(problem, loss=jax.jit(problem.loss))


def _end(model: str, algorithm: str, epochs: int, backend: Any, dtype: Any = jnp.float64, drift: bool = False) -> Any:
    """The server's state after some rounds, and their reports."""
    (problem, draw), chosen, rng = MODELS[model], ALGORITHMS[algorithm], np.random.default_rng(5)
    problem = _whole(model) if backend == "reference" else problem
    population = fm.data.from_arrays({f"c{i}": draw(n, rng) for i, n in enumerate((*SIZES, 4, 5))})
    schedule = Schedule(6 if chosen.split else len(SIZES), 4, epochs, None, 0, "examples")
    state = chosen.init(jax.tree.map(lambda a: a.astype(dtype), problem.init(KEY)))
    infos = []
    for t in range(ROUNDS):
        cohort = schedule.cohort(chosen, population, t)
        state, info = fm.run_round(chosen, problem, state, cohort, KEY, backend=backend, drift=drift)
        assert not info.abandoned
        infos.append(info)
    return state.server, infos


@functools.cache
def _reference(model: str, algorithm: str, epochs: int) -> Any:
    return _end(model, algorithm, epochs, "reference", drift=True)


def _agree(model: str, algorithm: str, epochs: int = 1, backend: Any = "local") -> float:
    ours, reports = _end(model, algorithm, epochs, backend, drift=True)
    expected, others = _reference(model, algorithm, epochs)
    for one, other in zip(reports, others, strict=True):
        np.testing.assert_allclose(
            [one.loss, one.drift, one.update_norm], [other.loss, other.drift, other.update_norm], rtol=1e-9
        )
    return relative_error(ours, expected)


_SLOW = pytest.mark.slow  # large models compile for long; Mime takes every way to a gradient there
_REST = [(model, name, _SLOW) for model in ("cnn", "char_lstm") for name in ("mime_lite", "mime_mvr", "scaffold")]
_REST += [
    ("char_lstm", "fedavg", _SLOW),
    *(("logistic", name, _SLOW) for name in ("mime_lite", "mime_mvr", "scaffold")),
]
_ALL = [("mlp", name, ()) for name in ("mime_lite", "mime_mvr", "scaffold")]
_ALL += [(model, name, ()) for model in ("logistic", "mlp", "cnn") for name in ("fedavg", "mime")]
_ALL += [("char_lstm", "mime", ())]


@pytest.mark.parametrize(
    ("model", "algorithm"), [pytest.param(model, name, marks=marks) for model, name, marks in _ALL + _REST]
)
def test_models_and_algorithms(model: str, algorithm: str, fact) -> None:
    """Dropout in the CNN, whose random numbers must be the same ones."""
    error = _agree(model, algorithm, epochs=2 if algorithm == "mime_lite" else 1)
    fact("model × algorithm on local against reference, relative error in float64", error)
    assert error <= 1e-12


@pytest.mark.parametrize(
    ("model", "algorithm", "epochs"),
    [
        ("word_lstm", "mime", 1),
        ("mlp", "mime", 2),
        pytest.param("cnn", "mime", 2, marks=_SLOW),
        pytest.param("char_lstm", "mime", 2, marks=_SLOW),
        pytest.param("wide mlp", "mime", 1, marks=_SLOW),  # both with kernels and in single precision below
        pytest.param("cnn without dropout", "mime", 1, marks=_SLOW),
        pytest.param("cnn without dropout", "fedavg", 1, marks=_SLOW),
        ("mlp", "split", 1),
        ("mlp", "drawn", 1),
    ],
)
def test_other_ways_to_a_gradient(model: str, algorithm: str, epochs: int) -> None:
    assert _agree(model, algorithm, epochs) <= 1e-12


@pytest.mark.parametrize(
    ("model", "algorithm"),
    [
        ("wide mlp", "fedavg"),
        ("wide mlp", "mime"),
        ("cnn without dropout", "mime"),
        ("char_lstm", "fedavg"),
        pytest.param("cnn without dropout", "fedavg", marks=_SLOW),
        pytest.param("char_lstm", "mime", marks=_SLOW),
    ],
)
def test_single_precision_with_kernels(model: str, algorithm: str, fact) -> None:
    ours, _ = _end(model, algorithm, 1, "local", jnp.float32)
    error = relative_error(ours, _reference(model, algorithm, 1)[0])
    fact("model × algorithm on local in float32 against reference in float64, relative error", error)
    assert error <= 5e-5


LAYOUTS = {
    "one device": Local(1),
    "two": Local(2),
    "three": Local(3),
    "chunks of one": Local(2, Layout(2, 1)),
    "two lanes": Local(2, Layout(4, 8)),
    "three lanes on one": Local(1, Layout(3, 256)),
}


@pytest.mark.parametrize(
    ("layout", "algorithm"),
    [
        *((layout, "mime") for layout in LAYOUTS),
        *(("three", "scaffold"), pytest.param("chunks of one", "scaffold", marks=_SLOW)),
        *(pytest.param("two lanes", "scaffold", marks=_SLOW), pytest.param("one device", "drawn", marks=_SLOW)),
        *(("three", "drawn"), pytest.param("three lanes on one", "drawn", marks=_SLOW)),
    ],
)
def test_any_layout_gives_the_same_round(layout: str, algorithm: str) -> None:
    assert _agree("mlp", algorithm, 1, LAYOUTS[layout]) <= 1e-12


@pytest.mark.parametrize(
    ("model", "algorithm"),
    [
        ("logistic", "mime"),
        ("logistic", "mime_lite"),
        ("logistic", "scaffold"),
        pytest.param("cnn", "mime", marks=_SLOW),
    ],
)
def test_waves_give_the_same_round(model: str, algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "WAVE_BYTES", 2000)
    assert _agree(model, algorithm, 1) <= 1e-12


def test_a_fixed_layout_is_bit_identical() -> None:
    (first, _), (second, _) = (_end("cnn without dropout", "mime", 1, "local", jnp.float32) for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, first, second)


def test_an_error_names_client_and_stage() -> None:
    def loss(params: Any, batch: Any, key: Any) -> jax.Array:
        if isinstance(batch["z"], jax.core.Tracer) or float(batch["z"][0]) < 1:  # the abstract evaluation is not it
            return batch["z"] * params["x"]
        raise ArithmeticError("no such number")

    problem = fm.models.from_functions(lambda key: {"x": jnp.ones(())}, loss)
    population = fm.data.from_arrays({"fine": {"z": np.zeros(2)}, "ill": {"z": np.ones(2)}})
    with pytest.raises(fm.ClientFailed, match="client 'ill', local training: ArithmeticError: no such number"):
        fm.simulate(A.fedavg(0.1), problem, population, 1, 2, backend="reference")
    with pytest.raises(fm.ClientFailed, match="client 'ill', its full gradient"):
        fm.simulate(A.mime(MOMENTUM, 0.1), problem, population, 1, 2, backend="reference")
