"""Local steps that leave the first layer's weights in dual form give the numbers of those that do not."""

import dataclasses

import jax
import numpy as np
import pytest

import fedmime as fm
from fedmime import native
from fedmime.algorithms.mime import Mime
from fedmime.engine import dual
from fedmime.models.factors import perceptron_factors
from fedmime.numbers import recipe
from fedmime.vector import Vector

pytestmark = pytest.mark.skipif(not native.usable(), reason=f"no kernels here: {native.status()}")

BATCH, ETA = 5, 0.05
SHAPE, CLASSES, HIDDEN = (6, 8, 1), 17, (40, 20)
MOMENTUM, SGD, ADAM = fm.optimizers.momentum(0.8), fm.optimizers.sgd(), fm.optimizers.adam(eps=0.1)
MIME = fm.algorithms.mime(MOMENTUM, ETA)


@recipe
class Decaying(Mime):
    """Weights decay towards x, so that a step's sum is not made of a gradient and of what all steps add."""

    def local(self, message, client):
        x, s, c = message
        U = self.base.from_server(self.apply, s, x, c)

        def step(y, batch):
            return y - self.eta * U(client.grad(y, batch, 1.0), y) - 0.1 * (y - x)

        return fm.algorithms.Reply(send=client.descend(step, x) - x)


@recipe
class Looking(Mime):
    """A step looks at the model itself."""

    def local(self, message, client):
        x, s, c = message
        U = self.base.from_server(self.apply, s, x, c)

        def step(y, batch):
            return Vector((y - self.eta * U(client.grad(y, batch, 1.0), y)).tree)

        return fm.algorithms.Reply(send=client.descend(step, x) - x)


def _of(kind):
    return kind(*(getattr(MIME, field.name) for field in dataclasses.fields(MIME)))


def _problem():
    """A new one each time, so that nothing compiled before is used."""
    problem = fm.models.mlp(SHAPE, CLASSES, HIDDEN)
    return dataclasses.replace(problem, factors=perceptron_factors(len(HIDDEN) + 1, dual=True))


def _cohort():
    """Clients of one to twelve steps, one of a single example, the last mini-batch of most not full."""
    random, batches, masks = np.random.default_rng(1), [], []
    for steps, missing in ((1, 4), (1, 0), (2, 3), (12, 0), (5, 2), (9, 4), (3, 1)):
        inputs, labels = random.random((steps, BATCH, *SHAPE), np.float32), random.integers(0, CLASSES, (steps, BATCH))
        batches.append({"x": inputs, "y": labels})
        masks.append(np.arange(steps * BATCH).reshape(steps, BATCH) < steps * BATCH - missing)
    return fm.Cohort.from_batches(batches, masks)


def _rounds(algorithm, dtype, devices=None, drift=False):
    problem = _problem()
    state, infos = algorithm.init(jax.tree.map(lambda a: a.astype(dtype), problem.init(jax.random.key(0)))), []
    for _ in range(3):
        state, info = fm.run_round(algorithm, problem, state, _cohort(), devices=devices, drift=drift)
        assert not info.abandoned
        infos.append(info)
    return state, infos


@pytest.fixture
def used(monkeypatch):
    """How often such steps were compiled, with numbers that the kernels take."""
    found, original = [], dual.Start.descend

    def descend(self, step, seen):
        result = original(self, step, seen)
        found.append(self.layer)
        return result

    monkeypatch.setattr(dual.Start, "descend", descend)
    return found


def _distance(ours, exact):
    pairs = zip(jax.tree.leaves(ours.server), jax.tree.leaves(exact.server), strict=True)
    return max(float(np.abs(np.asarray(a, np.float64) - b).max() / np.abs(b).max()) for a, b in pairs)


@pytest.mark.parametrize("few", [320, 22, 0])
@pytest.mark.parametrize("base", [MOMENTUM, SGD], ids=["momentum", "sgd"])
def test_it_changes_digits_at_the_end_only(base, few, used, monkeypatch, fact):
    """With room for all clients, for those of up to five steps, and for those of one."""
    monkeypatch.setattr(dual, "FEW", max(few, BATCH))
    monkeypatch.setattr(dual.Start, "pays", property(lambda self: self.steps * self.batch <= few))
    algorithm = fm.algorithms.mime(base, ETA)
    ours, infos = _rounds(algorithm, np.float32)
    assert set(used) == {"dense0"}
    used.clear()
    exact, expected = _rounds(algorithm, np.float64)
    assert not used
    distance = _distance(ours, exact)
    fact("steps in dual form against float64, relative error", distance)
    assert distance <= 2e-6
    for one, other in zip(infos, expected, strict=True):
        np.testing.assert_allclose([one.loss, one.update_norm], [other.loss, other.update_norm], rtol=1e-5)


@pytest.mark.parametrize(
    ("algorithm", "dual_form"),
    [
        (fm.algorithms.mime(MOMENTUM, ETA, state="local"), False),
        (fm.algorithms.mime(ADAM, 1e-3), False),
        (fm.algorithms.mime_lite(MOMENTUM, ETA), False),
        (fm.algorithms.mime_mvr(ETA, beta=0.8, anchor="current"), None),
        (_of(Decaying), False),
        (_of(Looking), False),
    ],
    ids=["loc-mime", "mime-adam", "mime-lite", "mime-mvr", "decaying", "looking"],
)
def test_other_algorithms_agree_whether_they_can_use_it_or_not(algorithm, dual_form, used):
    ours, _ = _rounds(algorithm, np.float32)
    assert dual_form is None or bool(used) == dual_form
    exact, _ = _rounds(algorithm, np.float64)
    assert _distance(ours, exact) <= 5e-5


def test_a_round_is_the_same_bits_again_and_nearly_those_of_one_device(used):
    (ours, _), (again, _) = _rounds(MIME, np.float32), _rounds(MIME, np.float32)
    for one, other in zip(jax.tree.leaves(ours.server), jax.tree.leaves(again.server), strict=True):
        np.testing.assert_array_equal(one, other)
    assert _distance(_rounds(MIME, np.float32, devices=1)[0], ours) <= 2e-6
    assert used


def test_watched_drift_is_that_of_the_weights(used):
    infos, exact = _rounds(MIME, np.float32, drift=True)[1], _rounds(MIME, np.float64, drift=True)[1]
    assert not used
    np.testing.assert_allclose([i.drift for i in infos], [i.drift for i in exact], rtol=1e-5)


def test_the_paper_sized_perceptron_uses_it():
    assert fm.models.mlp().factors.first == ("x", "dense0")
    assert fm.models.logistic().factors.first is None
    assert fm.models.mlp(SHAPE, CLASSES, HIDDEN).factors.first is None
