"""Mime and MimeLite where gradients are sparse: what frozen statistics do to a word that no gradient has met yet."""

import numpy as np
import pytest

import fedmime as fm

WORDS = 6


def _population() -> fm.data.Population:
    """Every client has two words of its own beside one that all share, as users of a large vocabulary do."""
    clients = {
        f"client {i}": {
            "x": np.eye(WORDS, dtype=np.float32)[[0, 1 + i % 5, 1 + (i + 1) % 5]],
            "y": np.array([0.5, 1.0, -1.0], np.float32),
        }
        for i in range(5)
    }
    return fm.data.from_arrays(clients)


def _problem() -> fm.models.Problem:
    def loss(params, batch, key):
        return (batch["x"] @ params["w"] - batch["y"]) ** 2

    return fm.models.from_functions(lambda key: {"w": np.zeros(WORDS, np.float32)}, loss)


def _run(algorithm) -> fm.Run:
    return fm.simulate(algorithm, _problem(), _population(), rounds=8, cohort_size=2, batch_size=1, seed=0)


@pytest.mark.parametrize("make", [fm.algorithms.mime, fm.algorithms.mime_lite])
def test_a_floor_or_lookahead_helps_where_a_frozen_base_diverges_on_sparse_gradients(make) -> None:
    adam = fm.optimizers.adam()
    with pytest.raises(
        fm.Diverged, match=r"lower eta; where gradients are sparse, give the base a floor or take apply="
    ):
        _run(make(adam, eta=1e-2, split=True))
    for algorithm in (
        make(adam, eta=1e-2, split=True, apply="lookahead"),
        make(fm.optimizers.adam(floor=0.1), eta=1e-2, split=True),
    ):
        losses = _run(algorithm).history["loss"]
        assert np.nanmin(losses[-3:]) < np.nanmax(losses[:3])


def test_other_runs_are_told_to_lower_the_rate() -> None:
    for algorithm in (
        fm.algorithms.mime(fm.optimizers.momentum(), eta=1.0),
        fm.algorithms.mime(fm.optimizers.adam(), eta=1.0, apply="lookahead"),
        fm.algorithms.fedavg(eta=1.0),
    ):
        assert algorithm.remedy == "lower eta"
