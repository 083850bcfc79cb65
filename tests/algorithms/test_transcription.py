"""Every algorithm × base × mode against an independent NumPy transcription written from the specification alone."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedmime as fm
from algorithms.cases import CASES, Case, covering
from marking import fast
from reference import algorithms as ref
from reference import problems as ref_problems

ROUNDS, DIM, CLASSES = 4, 4, 3
SHAPES = {"w": (DIM, CLASSES), "b": (CLASSES,)}


@jax.jit  # one program for the reference back end, which would run it operation by operation
def _loss(params, batch, key):
    logits = batch["x"] @ params["w"] + params["b"]
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), batch["y"][:, None], axis=1)[:, 0]


PROBLEM = fm.models.from_functions(lambda key: None, _loss)


@functools.cache
def data() -> tuple[list[list[ref.Client]], list[list[ref.Client]], dict[str, np.ndarray]]:
    """Fixed clients for every round: other sizes, partial batches, a client with one example."""
    rng = np.random.default_rng(7)

    def client(i: int, n: int) -> ref.Client:
        full = {"x": rng.normal(size=(n, DIM)), "y": rng.integers(0, CLASSES, n)}
        return ref.Client(ref.in_batches(full, 3, 2, rng), full, id=i)

    rounds = [[client(i, n) for i, n in enumerate(rng.permutation([7, 1, 5]))] for _ in range(ROUNDS)]
    others = [[client(i, n) for i, n in enumerate(rng.permutation([4, 2, 6]))] for _ in range(ROUNDS)]
    return rounds, others, {name: 0.5 * rng.normal(size=shape) for name, shape in SHAPES.items()}


def cohort(clients: list[ref.Client], full: list[ref.Client], dtype: type, **options: Any) -> fm.Cohort:
    """The same mini-batches as padded arrays with masks."""
    batches, masks = [], []
    for client in clients:
        width = max(len(b["y"]) for b in client.batches)
        mask = np.array([[k < len(b["y"]) for k in range(width)] for b in client.batches])
        x = np.full((*mask.shape, DIM), 1e6, dtype)  # padding must not matter
        y = np.zeros(mask.shape, np.int32)
        for i, b in enumerate(client.batches):
            x[i, : len(b["y"])], y[i, : len(b["y"])] = b["x"], b["y"]
        batches.append({"x": x, "y": y})
        masks.append(mask)
    full_data = [{"x": c.full["x"].astype(dtype), "y": c.full["y"].astype(np.int32)} for c in full]
    weights = [float(len(c.full["y"])) for c in clients]
    return fm.Cohort.from_batches(batches, mask=masks, weights=weights, full=full_data, **options)


def _states(case: Case, dtype: type, backend: str = "local", number: int = ROUNDS) -> list[fm.State]:
    """The state after each of some rounds."""
    rounds, others, x = data()
    found = [case.algorithm.init({name: jnp.asarray(a, dtype) for name, a in x.items()})]
    for t in range(number):
        clients = cohort(rounds[t], others[t] if case.split else rounds[t], dtype)
        state, info = fm.run_round(case.algorithm, PROBLEM, found[-1], clients, backend=backend)
        assert not info.abandoned
        found.append(state)
    return found[1:]


def relative_error(ours: Any, expected: Any) -> float:
    """The largest difference of two pytrees, relative to the largest entry of the second."""
    flat = [np.concatenate([np.ravel(np.asarray(a, np.float64)) for a in jax.tree.leaves(t)]) for t in (ours, expected)]
    return float(np.abs(flat[0] - flat[1]).max() / np.abs(flat[1]).max())


def _error_of(case: Case, state: fm.State, dtype: type) -> float:
    """The relative error of the model after all rounds."""
    rounds, others, x = data()
    expected = case.start(x)
    for t in range(ROUNDS):
        expected = case.step(expected, rounds[t], others[t], ref_problems.logistic().grad, t)
    ours = fm.params(state)
    assert all(leaf.dtype == dtype for leaf in ours.values())
    difference = max(np.abs(np.asarray(ours[name], np.float64) - expected.x[name]).max() for name in ours)
    return difference / max(np.abs(a).max() for a in expected.x.values())


CHOSEN = {case.name for case in covering(CASES, together=1)}
CHOSEN |= {case.name for case in covering([c for c in CASES if c.name.startswith(("mime/", "mime_lite/"))], together=2)}


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.name, marks=[pytest.mark.slow][case.name in CHOSEN :]) for case in CASES]
)
def test_agrees_with_the_transcription(case: Case, fact) -> None:
    """On the compiled back end, with which the reference one agrees, too.

    Every algorithm, every base and every mode; Mime and MimeLite with every base and in every mode, and every base in
    every mode. The rest of the product are slow tests.
    """
    ours = _states(case, np.float64)
    error = _error_of(case, ours[-1], np.float64)
    fact("algorithm × base × mode against NumPy, relative error in float64", error)
    assert error <= 1e-10
    theirs = _states(case, np.float64, "reference", 1 + case.algorithm.gradient_rounds)
    error = relative_error(ours[len(theirs) - 1].server, theirs[-1].server)
    fact("algorithm × base × mode on local against reference, relative error in float64", error)
    assert error <= 1e-12


ONCE = [case.name for case in covering(CASES, together=1)]
PLAIN = [case for case in CASES if "-split" not in case.name and not case.name.startswith("loc_")]
IN_FLOAT32 = {case.name for case in covering(PLAIN, together=1)}


@pytest.mark.parametrize(
    "name", fast({**dict.fromkeys(ONCE), **dict.fromkeys(sorted(IN_FLOAT32))}, set(ONCE) - IN_FLOAT32)
)
def test_agrees_in_float32(name: str, fact) -> None:
    """Every algorithm, every base and every mode; who sends what to whom is the same in any precision."""
    case = next(case for case in CASES if case.name == name)
    error = _error_of(case, _states(case, np.float32)[-1], np.float32)
    fact("algorithm, base and mode against NumPy, relative error in float32", error)
    assert error <= 2e-5
