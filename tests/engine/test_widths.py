"""Narrow programs for short mini-batches: taken where a batch fits, and the numbers stay the same."""

import dataclasses

import jax
import numpy as np
import pytest

import fedmime as fm

BATCH, INPUTS = 10, 6
ALGORITHMS = {
    "fedavg": fm.algorithms.fedavg(0.1),
    "mime, kept gradients": fm.algorithms.mime(fm.optimizers.momentum(), 0.1),
    "mime_lite": fm.algorithms.mime_lite(fm.optimizers.momentum(), 0.1),
    "scaffold": fm.algorithms.scaffold(0.1),
}


def _problem(widths, seen):
    """Least squares whose loss notes the widths it is traced for."""

    def loss(params, batch, key):
        seen.add(batch["x"].shape[0])
        return (batch["x"] @ params["w"] - batch["y"]) ** 2

    problem = fm.models.from_functions(lambda key: {"w": jax.random.normal(key, (INPUTS,))}, loss)
    return dataclasses.replace(problem, widths=widths)


def _cohort(counts):
    """A client for each count, with a full mini-batch and one of that many examples."""
    random = np.random.default_rng(0)
    batches = [
        {"x": random.normal(size=(2, BATCH, INPUTS)), "y": random.normal(size=(2, BATCH))} for _ in range(len(counts))
    ]
    masks = [np.stack([np.ones(BATCH, bool), np.arange(BATCH) < count]) for count in counts]
    return fm.Cohort.from_batches(batches, masks)


def _round(name, widths, cohort):
    algorithm, seen = ALGORITHMS[name], set()
    problem = _problem(widths, seen)
    state, info = fm.run_round(algorithm, problem, algorithm.init(problem.init(jax.random.key(0))), cohort)
    return np.asarray(state.server.x.tree["w"]), info, seen


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_narrow_program_gives_the_same_numbers(name) -> None:
    cohort = _cohort(range(1, BATCH + 1))
    wide, wide_info, _ = _round(name, 1, cohort)
    narrow, info, seen = _round(name, 3, cohort)
    assert {4, 7, BATCH} <= seen
    np.testing.assert_allclose(narrow, wide, rtol=1e-13)
    np.testing.assert_allclose(info.loss, wide_info.loss, rtol=1e-13)


def test_a_short_mini_batch_does_not_run_the_wide_program() -> None:
    """Rows beyond the narrow width are not even looked at."""
    ran = []

    def loss(params, batch, key):
        jax.debug.callback(lambda x: ran.append(x.shape[0]), batch["x"])
        return (batch["x"] @ params["w"] - batch["y"]) ** 2

    problem = fm.models.from_functions(lambda key: {"w": jax.numpy.ones(INPUTS)}, loss)
    problem = dataclasses.replace(problem, widths=3)
    algorithm = ALGORITHMS["fedavg"]
    fm.run_round(algorithm, problem, algorithm.init(problem.init(jax.random.key(0))), _cohort([3, 4, 5, 7, 8]))
    jax.effects_barrier()
    assert sorted(ran) == [4, 4, 7, 7, *([BATCH] * 6)]


def test_more_widths_than_rows_are_as_many_as_there_are_rows() -> None:
    cohort = _cohort([1, 5, 9])
    narrow, _, seen = _round("fedavg", 99, cohort)
    assert set(range(1, BATCH + 1)) <= seen
    np.testing.assert_allclose(narrow, _round("fedavg", 1, cohort)[0], rtol=1e-13)
