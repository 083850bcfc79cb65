"""The first local step starts at the anchor: it takes what was kept there, as good as two gradients."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedmime as fm
from fedmime.engine.backends.local.backend import LocalBackend

MOMENTUM = fm.optimizers.momentum()
ALGORITHMS = {
    "mime": fm.algorithms.mime(MOMENTUM, 0.1),
    "loc-mime": fm.algorithms.mime(MOMENTUM, 0.1, state="local"),
    "mime-mvr": fm.algorithms.mime_mvr(0.1, beta=0.9, anchor="current"),
    "mime-lite-mvr": fm.algorithms.mime_lite_mvr(0.1, beta=0.9, anchor="current"),
}
DENSE = fm.models.mlp(input_shape=(3,), hidden=(5,), classes=4)
PROBLEMS = {  # one for each way to keep gradients at the anchor
    "factors": DENSE,
    "factors of a CNN": fm.models.cnn((8, 8, 1), 17, 0.0),
    "cache": dataclasses.replace(DENSE, factors=None),
}


def _cohort(problem):
    """Clients of one to three steps, the last mini-batch not full."""
    random = np.random.default_rng(0)
    shape, classes = ((8, 8, 1), 17) if problem.name == "cnn" else ((3,), 4)
    steps = (3, 1, 2)
    batches = [{"x": random.random((k, 4, *shape)), "y": random.integers(0, classes, (k, 4))} for k in steps]
    masks = [np.arange(4 * k).reshape(k, 4) < 4 * k - 2 for k in steps]
    return fm.Cohort.from_batches(batches, masks)


def _rounds(algorithm, problem):
    dtype = np.float32 if problem.name == "cnn" else np.float64  # for speed
    model = jax.tree.map(lambda leaf: leaf.astype(dtype), problem.init(jax.random.key(0)))
    state, infos = algorithm.init(model), []
    for _ in range(4):  # MVR's x^{t-2} is another point than x^{t-1} from the third on
        state, info = fm.run_round(algorithm, problem, state, _cohort(problem), drift=True)
        infos.append(info)
    return state, infos


CASES = [("mime", kind) for kind in PROBLEMS]
CASES += [("mime-mvr", "cache"), ("mime-lite-mvr", "factors")]
CASES += [pytest.param(*case, marks=pytest.mark.slow) for case in (("loc-mime", "factors"), ("mime-lite-mvr", "cache"))]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_it_is_the_step_of_two_gradients(name, kind, monkeypatch) -> None:
    algorithm, problem = ALGORITHMS[name], PROBLEMS[kind]
    ours, infos = _rounds(algorithm, problem)
    chosen = LocalBackend._options
    monkeypatch.setattr(LocalBackend, "_options", lambda *given: chosen(*given)._replace(at_anchor=None))
    twice, plain = _rounds(algorithm, problem)
    for one, other in zip(jax.tree.leaves(ours.server), jax.tree.leaves(twice.server), strict=True):
        close = 1e-12 if one.dtype == np.float64 else 1e-5
        np.testing.assert_allclose(one, other, rtol=close, atol=close / 10)
    for one, other in zip(infos, plain, strict=True):
        np.testing.assert_allclose([one.loss, one.drift], [other.loss, other.drift], rtol=10 * close)


@pytest.mark.parametrize("name", ["mime", "loc-mime"])
def test_it_asks_for_no_gradient(name) -> None:
    """The full gradient takes six mini-batches of three clients, their local steps those but for the first three."""
    ran = []

    def loss(params, batch, key):
        jax.debug.callback(lambda x: ran.append(len(x)), batch["x"])
        return (batch["x"] @ params["w"] - batch["y"]) ** 2

    problem = fm.models.from_functions(lambda key: {"w": jnp.ones(3)}, loss)
    algorithm = ALGORITHMS[name]
    fm.run_round(algorithm, problem, algorithm.init(problem.init(jax.random.key(0))), _cohort(problem))
    jax.effects_barrier()
    assert len(ran) == 6 + 3
