"""Measures of density against vectors with known zeros, and the densities of a cohort worked out by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

import fedmime as fm
from fedmime.errors import Stopped
from fedmime.experiments import sparsity, sparsity_figure, tasks
from fedmime.experiments.reproduce_order import Order
from fedmime.experiments.sparsity_density import Draws, densities
from fedmime.experiments.sparsity_measures import effective_density, layers, nonzero_share, share_outside


def test_measures_of_a_vector_with_known_zeros() -> None:
    v = np.zeros(100, np.float32)
    v[:8] = 3
    assert nonzero_share(v) == 0.08
    assert effective_density(v) == pytest.approx(0.08)
    v[8:] = 1e-9  # dense by name only
    assert nonzero_share(v) == 1
    assert effective_density(v) == pytest.approx(0.08, rel=1e-6)
    assert effective_density(np.random.default_rng(0).normal(size=100_000)) == pytest.approx(2 / np.pi, abs=0.01)
    assert effective_density(np.zeros(3)) == nonzero_share(np.zeros(3)) == 0


def test_the_share_of_a_step_outside_a_gradient() -> None:
    step = np.asarray([3.0, 4.0, 0.0, 0.0])
    assert share_outside(step, np.asarray([1.0, 0.0, 0.0, -2.0])) == pytest.approx(16 / 25)
    assert share_outside(step, np.asarray([True, True, False, False])) == 0
    assert share_outside(np.zeros(4), step) == 0


def test_layers_are_ranges_of_the_flat_model() -> None:
    params = {"dense": {"b": np.zeros(2), "w": np.zeros((2, 3))}, "embedding": np.zeros((5, 3))}
    assert layers(params) == {"dense": slice(0, 8), "embedding": slice(8, 23)}


def test_densities_of_two_clients_by_hand() -> None:
    """f = mean (1 - w·x)²/2 at w = 0 has the gradient -mean x. Client 0 has words 0 and 1, client 1 has word 2 only."""
    problem = fm.models.from_functions(
        lambda key: {"words": jnp.zeros(4)}, lambda params, batch, key: (1 - batch["x"] @ params["words"]) ** 2 / 2
    )
    words = np.eye(4, dtype=np.float32)
    population = fm.data.from_arrays({"0": {"x": words[[0, 1]]}, "1": {"x": words[[2, 2]]}})
    x, m = {"words": jnp.zeros(4)}, {"words": jnp.asarray([0.0, 0.0, 0.0, 1.0])}
    found = densities(problem, population, x, m, fm.optimizers.momentum(0.5), Draws(1, 2, 2, 0), lambda: None)
    assert found["model"] == found["words"]
    part = found["words"]
    # The gradients are -(½, ½, 0, 0) and -(0, 0, 1, 0), so c is -(¼, ¼, ½, 0).
    assert part["size"] == 4
    assert part["nonzero"] == pytest.approx(
        {"gradient": 3 / 8, "momentum": 1 / 4, "correction": 3 / 4, "cohort": 3 / 4}
    )
    assert part["effective"]["gradient"] == pytest.approx((2 / 4 + 1 / 4) / 2)
    assert part["effective"]["cohort"] == pytest.approx(1 / (4 * 3 / 8))
    assert part["outside_batch"]["MimeSGD"] == pytest.approx((2 / 3 + 1 / 3) / 2)
    assert part["outside_batch"]["MimeLiteMom"] == pytest.approx((1 / (1 + 1 / 2) + 1 / (1 + 1)) / 2)
    assert part["outside_client"] == pytest.approx(part["outside_batch"])  # the mini-batches are all the data


def test_the_sparsest_layer_is_the_one_with_the_most_zeros() -> None:
    part = lambda size, share: {"size": size, "nonzero": {"gradient": share}}
    found = {"model": part(1100, 0.5), "embedding": part(1000, 0.5), "dense": part(100, 0.1)}
    assert sparsity_figure.sparsest(found) == "embedding"
    assert sparsity_figure.sparsest({"model": part(4, 0.5), "dense": part(4, 0.5)}) is None


def test_densities_are_published_before_bases_are_compared(tmp_path, monkeypatch) -> None:
    def stopped(*_):
        raise Stopped("stopped", 2)

    monkeypatch.setattr(sparsity.accuracies, "measure", stopped)
    published = []
    with pytest.raises(Stopped):
        sparsity.run(Order("smoke", tmp_path, publish=published.append))
    (data,) = published
    assert (len(data["density"]), data["remedies"]) == (1, [])


def test_every_task_and_base_is_known() -> None:
    assert {*sparsity.REAL, *sparsity.EMBEDDED} <= set(tasks.TASKS)
    for scale in sparsity.SCALES.values():
        for column in scale.columns:
            assert set(column.bases) <= set(sparsity.BASES)
