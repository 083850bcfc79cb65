"""Local steps that leave the first layer's weights in dual form give the numbers of those that do not."""

import dataclasses

import jax
import numpy as np
import pytest

import fedmime as fm
from fedmime import native
from fedmime.algorithms.mime import Mime
from fedmime.dual import Dual, NotDual, Path
from fedmime.engine import dual
from fedmime.models.factors import perceptron_factors
from fedmime.models.layers import OuterSum
from fedmime.numbers import recipe
from fedmime.vector import Vector, norm, squared_distance

pytestmark = pytest.mark.skipif(not native.usable(), reason=f"no kernels here: {native.status()}")

BATCH, ETA = 5, 0.05
SHAPE, CLASSES, HIDDEN = (6, 8, 1), 17, (40, 20)
MOMENTUM, SGD, ADAM = fm.optimizers.momentum(0.8), fm.optimizers.sgd(), fm.optimizers.adam(eps=0.1)
MIME = fm.algorithms.mime(MOMENTUM, ETA)


class Own(Mime):
    """Algorithms of a user's own, which say what a step does."""

    def local(self, message, client):
        x, s, c = message
        U = self.base.from_server(self.apply, s, x, c)
        y = client.descend(lambda y, batch: self.step(y, batch, x, c, U, client), x)
        return fm.algorithms.Reply(send=y - x)


@recipe
class Decaying(Own):
    """Weights decay towards x."""

    def step(self, y, batch, x, c, U, client):
        return y - self.eta * U(client.grad(y, batch, 1.0), y) - 0.1 * (Vector.pending(y.tree) - x)


@recipe
class Slowing(Own):
    """Steps are the shorter, the farther away."""

    def step(self, y, batch, x, c, U, client):
        return y - self.eta / (1 + squared_distance(y, x)) * U(client.grad(y, batch, 1.0), y)


@recipe
class Careful(Own):
    """Steps are the shorter, the longer the gradient by itself is."""

    def step(self, y, batch, x, c, U, client):
        size = norm(client.grad(y, batch))
        return y - self.eta / (1 + size) * U(client.grad(y, batch, 1.0), y)


@recipe
class Formed(Own):
    """A step ends with the model itself."""

    def step(self, y, batch, x, c, U, client):
        return Vector((y - self.eta * U(client.grad(y, batch, 1.0), y)).tree)


@recipe
class Blind(Own):
    """No step asks for a gradient."""

    def step(self, y, batch, x, c, U, client):
        return y - self.eta * Vector.pending(c.tree)


@recipe
class Straight(Own):
    """Steps go along their own gradient alone."""

    def step(self, y, batch, x, c, U, client):
        return y - self.eta * client.grad(y, batch)


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
    """What was compiled: "begun" for steps in dual form, "used" if they could be kept."""
    found, original = [], dual.Start.descend

    def descend(self, step, seen):
        found.append("begun")
        result = original(self, step, seen)
        found.append("used")
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
    assert "used" in used
    used.clear()
    exact, expected = _rounds(algorithm, np.float64)
    assert not used
    distance = _distance(ours, exact)
    fact("steps in dual form against float64, relative error", distance)
    assert distance <= 2e-6
    for one, other in zip(infos, expected, strict=True):
        np.testing.assert_allclose([one.loss, one.update_norm], [other.loss, other.update_norm], rtol=1e-5)


@pytest.mark.parametrize(
    ("algorithm", "begun"),
    [
        (fm.algorithms.mime(MOMENTUM, ETA, state="local"), False),
        (fm.algorithms.mime(ADAM, 1e-3), False),
        (fm.algorithms.mime_lite(MOMENTUM, ETA), False),
        (fm.algorithms.mime_mvr(ETA, beta=0.8, anchor="current"), False),
        (_of(Formed), False),
        (_of(Straight), False),
        (_of(Decaying), True),
        (_of(Slowing), True),
        (_of(Careful), True),
        (_of(Blind), True),
    ],
    ids=lambda value: type(value).__name__.lower(),
)
def test_algorithms_that_cannot_use_it_run_as_before(algorithm, begun, used):
    """Whether that is seen in the first step or in a later one."""
    ours, _ = _rounds(algorithm, np.float32)
    assert set(used) == ({"begun"} if begun else set())
    exact, _ = _rounds(algorithm, np.float64)
    assert _distance(ours, exact) <= 5e-5


def test_weights_are_a_sum_of_themselves_and_of_products():
    x, v, rows, along, d = (np.ones(shape, np.float32) for shape in ((16, 20), (16, 20), (8, 20), (8, 16), (8, 16)))
    weights = Dual(Path(x, v, rows, along), jax.numpy.float32(2), d, jax.numpy.int32(4))
    np.testing.assert_allclose(weights.formed(3.0, [(1.0, v)]), 3 * (1 + 2 + 4) + 1)
    products = OuterSum(2 * d[:4], rows[:4])
    tau, after = weights.stepped([1.0, -0.5, 3.0], [weights, v, products])
    np.testing.assert_allclose(tau, 1.5)
    np.testing.assert_allclose(after, np.repeat([1.0, 6.0], 4)[:, None] * np.ones(16))
    for scales, leaves in (([0.9, 1.0], [weights, products]), ([1.0, 1.0], [weights, x]), ([1.0], [weights])):
        with pytest.raises(NotDual):
            weights.stepped(scales, leaves)
    with pytest.raises(NotDual):
        weights.stepped([1.0, 1.0, 1.0], [weights, products, products])


def test_examples_of_a_population_in_memory(used):
    """Where they stay where they are, and rounds send their places."""
    random = np.random.default_rng(3)
    sizes = (1, 5, 23, 60, 14, 31)
    clients = {
        f"c{i}": {"x": random.random((n, *SHAPE), np.float32), "y": random.integers(0, CLASSES, n).astype(np.int32)}
        for i, n in enumerate(sizes)
    }

    def trained(dtype):
        problem = _problem()
        model = jax.tree.map(lambda a: a.astype(dtype), problem.init(jax.random.key(0)))
        population = fm.data.from_arrays(clients)
        return fm.simulate(MIME, problem, population, rounds=3, cohort_size=4, batch_size=BATCH, initial=model).state

    ours = trained(np.float32)
    assert "used" in used
    assert _distance(ours, trained(np.float64)) <= 2e-6


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
