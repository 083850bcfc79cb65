"""The work is the same for everyone, every time, and is the model the library has."""

import jax
import numpy as np
import pytest
from benchmarks.peers.work_file import WorkFile
from benchmarks.shapes import MODELS, parameters, products, size, step_flops
from benchmarks.work import Work

import fedmime as fm


@pytest.mark.parametrize("model", ["mlp", "char_lstm"])
def test_work_is_a_function_of_its_settings(model):
    first, second = Work(model, clients=3).arrays(), Work(model, clients=3).arrays()
    assert first.keys() == second.keys()
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert not np.array_equal(first["order"], Work(model, clients=3, seed=1).arrays()["order"][:, : len(first["y"])])


def test_sizes_are_those_of_the_setting():
    sizes = Work("mlp", clients=2000).sizes()
    assert sizes.min() >= 20
    assert sizes.max() <= 500
    assert 180 < sizes.mean() < 205


def test_every_epoch_visits_every_example_once(tmp_path):
    work = Work("logistic", clients=2, epochs=2)
    file = WorkFile(str(work.write(tmp_path / "work.npz")))
    for i, n in enumerate(file.sizes):
        batches = file.batches(i, 2)
        assert [len(b) for b in batches[: len(batches) // 2]][:-1] == [10] * (-(-n // 10) - 1)
        assert sorted(np.concatenate(batches).tolist()) == sorted([*range(n), *range(n)])
    assert sum(len(file.batches(i, 1)) for i in range(2)) == work.steps()
    assert {k: v.shape for k, v in file.initial.items()} == parameters("logistic")


@pytest.mark.parametrize("model", MODELS)
def test_parameters_are_laid_out_as_in_the_library(model):
    make = {
        "logistic": fm.models.logistic,
        "mlp": fm.models.mlp,
        "cnn": fm.models.cnn,
        "char_lstm": lambda: fm.models.char_lstm(layers=2),
    }
    leaves = jax.tree_util.tree_leaves_with_path(jax.eval_shape(make[model]().init, jax.random.key(0)))
    shapes = {"/".join(k.key for k in path): leaf.shape for path, leaf in leaves}
    assert shapes == parameters(model)
    assert size(model) == sum(leaf.size for _, leaf in leaves)


def test_operations_of_a_logistic_step():
    assert step_flops("logistic", 10) == 2 * 2 * 10 * 784 * 62
    assert [tuple(p)[1:4] for p in products("logistic", 10)] == [(10, 784, 62), (62, 10, 784)]
    with pytest.raises(ValueError, match="unknown model 'rnn'"):
        products("rnn", 10)
