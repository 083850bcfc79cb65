"""Every algorithm × base × mode against an independent NumPy transcription written from the specification alone."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedmime as fm
from algorithms.cases import CASES, Case
from reference import algorithms as ref
from reference import problems as ref_problems

ROUNDS, DIM, CLASSES = 4, 4, 3
SHAPES = {"w": (DIM, CLASSES), "b": (CLASSES,)}


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


def cohort(clients: list[ref.Client], full: list[ref.Client], dtype: type) -> fm.Cohort:
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
    return fm.Cohort.from_batches(batches, mask=masks, weights=weights, full=full_data)


def relative_error(case: Case, dtype: type) -> float:
    rounds, others, x = data()
    grad = ref_problems.logistic().grad
    expected = case.start(x)
    state = case.algorithm.init({name: jnp.asarray(a, dtype) for name, a in x.items()})
    for t in range(ROUNDS):
        expected = case.step(expected, rounds[t], others[t], grad, t)
        full = others[t] if case.split else rounds[t]
        state, info = fm.run_round(case.algorithm, PROBLEM, state, cohort(rounds[t], full, dtype))
        assert not info.abandoned
    ours = fm.params(state)
    assert all(leaf.dtype == dtype for leaf in ours.values())
    difference = max(np.abs(np.asarray(ours[name], np.float64) - expected.x[name]).max() for name in ours)
    return difference / max(np.abs(a).max() for a in expected.x.values())


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_agrees_with_the_transcription(case: Case, fact) -> None:
    """On the compiled back end; tests/engine/backends/test_reference.py compares that with the reference one."""
    error = relative_error(case, np.float64)
    fact("algorithm × base × mode against NumPy, relative error in float64", error)
    assert error <= 1e-10


# each algorithm × base once, in the mode it has by default
SINGLE = {(case.name.split("/")[0].removeprefix("loc_"), *case.name.split("/")[1:2]): case for case in reversed(CASES)}


@pytest.mark.parametrize("case", SINGLE.values(), ids=lambda c: c.name)
def test_agrees_in_float32(case: Case, fact) -> None:
    error = relative_error(case, np.float32)
    fact("algorithm × base against NumPy, relative error in float32", error)
    assert error <= 2e-5
