"""A copy of the local steps' program for each device of a CPU: the numbers are those of one program for all."""

import jax
import numpy as np
import pytest

import fedmime as fm
from fedmime import native
from fedmime.engine.backends import lanes

PROBLEM = fm.models.logistic()  # 48,670 numbers
ALGORITHMS = {
    "fedavg": fm.algorithms.fedavg(0.1),
    "mime": fm.algorithms.mime(fm.optimizers.momentum(), 0.1),
    "scaffold": fm.algorithms.scaffold(0.1),
}


def _cohort() -> fm.Cohort:
    random = np.random.default_rng(0)
    return fm.Cohort.from_batches(
        [
            {"x": random.random((steps, 5, 28, 28, 1), np.float32), "y": random.integers(0, 62, (steps, 5))}
            for steps in range(1, 13)
        ]
    )


def _rounds(algorithm: fm.algorithms.Algorithm) -> list[bytes]:
    jax.clear_caches()
    state, cohort = algorithm.init(PROBLEM.init(jax.random.key(0))), _cohort()
    for _ in range(3):
        state, info = fm.run_round(algorithm, PROBLEM, state, cohort)
        assert not info.abandoned
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state.server)]


@pytest.mark.skipif(not native.usable(), reason=f"no kernels here: {native.status()}")
@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("copies", [1, 2])
def test_copies_change_no_bit(name: str, copies: int, monkeypatch) -> None:
    asked = []

    def switch(*args):
        asked.append(len(args[1]))
        return original(*args)

    original = jax.lax.switch
    apart = _rounds(ALGORITHMS[name])
    monkeypatch.setattr(lanes, "COPIES", copies)
    monkeypatch.setattr(lanes.lax, "switch", switch)
    assert _rounds(ALGORITHMS[name]) == apart
    assert asked == ([] if min(copies, jax.local_device_count()) == 1 else [copies])
    jax.clear_caches()
