"""The paper's reduction: a round of Mime or MimeLite is one central step on a gradient that is off by a small e."""

from typing import NamedTuple

import numpy as np

import fedmime as fm
from fedmime.optimizers.base import AdaptiveState
from fedmime.vector import Vector
from identities.setting import (
    Clients,
    Params,
    Random,
    bases,
    clients,
    distance,
    grad,
    identity,
    model,
    play,
    rate,
    seasoned,
    statistics,
    update,
)
from reference.tree import Tree, weighted_sum

a, o = fm.algorithms, fm.optimizers


def _central_step(base, s, x: Params, drawn: Clients, eta: float, corrected: bool) -> Tree:
    """x - K eta U(c + e, s), where e is the mean over clients and steps of the gradients' change since x."""
    members, steps = range(len(drawn.batches)), len(drawn.steps(0))
    share = [1 / len(members)] * len(members)
    c = weighted_sum(share, [Tree(grad(x, drawn.full(i))) for i in members])

    def U(g: Tree) -> Tree:
        return Tree(update(base, Vector(dict(g)), s).tree)

    deviations = []
    for i in members:
        y = Tree(x)
        for batch in drawn.steps(i):
            now, then = Tree(grad(y, batch)), Tree(grad(x, batch))
            deviations.append(now - then)
            y = y - eta * U(now - then + c if corrected else now)
    e = weighted_sum([1 / len(deviations)] * len(deviations), deviations)
    return Tree(x) - (steps * eta) * U(c + e)


def _deviates(factory, rng: Random, corrected: bool) -> float:
    eta, x, drawn = rate(rng), model(rng), clients(rng, rows=3)  # whole epochs, equal batches, equal K
    errors = []
    for base in bases(rng).values():
        s, algorithm = statistics(base, rng), factory(base, eta)
        end = play(algorithm, seasoned(algorithm, x, s), drawn.cohort(weights=np.ones(len(drawn.batches))))
        errors.append(distance(fm.params(end), _central_step(base, s, x, drawn, eta, corrected)))
    return max(errors)


@identity
def test_mime_deviates_from_the_central_update_by_e(rng: Random) -> float:
    return _deviates(a.mime, rng, corrected=True)


@identity
def test_mime_lite_deviates_from_the_central_update_by_e(rng: Random) -> float:
    return _deviates(a.mime_lite, rng, corrected=False)


CLIENTS, DIM, STEPS = 4, 5, 5


class Round(NamedTuple):
    """What a round on quadratics shows: the mean gradient, the deviation of the step from it, the clients' drift."""

    c: np.ndarray
    e: np.ndarray
    drift: float


def _quadratic_round(algorithm, s, scale: np.ndarray, quadratics, x: np.ndarray) -> Round:
    """Full batches on all clients; e is read off the step, as U multiplies by `scale`."""
    columns = {"a": quadratics.hessians, "b": quadratics.linear}
    batches = [{k: np.repeat(v[i][None, None], STEPS, axis=0) for k, v in columns.items()} for i in range(CLIENTS)]
    start, cohort = seasoned(algorithm, {"x": x}, s), fm.Cohort.from_batches(batches)
    end, info = fm.run_round(algorithm, quadratics.problem(), start, cohort, drift=True)
    c = quadratics.hessian @ x - quadratics.linear.mean(axis=0)
    step = (x - np.asarray(fm.params(end)["x"])) / (STEPS * algorithm.eta)
    e = step / scale - c
    if np.isfinite(info.deviation):  # MimeLite with SGD never learns c
        np.testing.assert_allclose(info.deviation, np.linalg.norm(e), rtol=1e-9, atol=1e-12)
    assert np.isfinite(info.deviation) == algorithm.waits
    return Round(c, e, info.drift)


def _random_quadratics(rng: Random):
    delta, seed = float(rng.uniform(0, 0.5)), int(rng.integers(2**31))
    return fm.theory.quadratics(CLIENTS, DIM, hessian_dissimilarity=delta, gradient_dissimilarity=4.0, seed=seed)


@identity
def test_e_is_bounded_by_the_central_gradient(rng: Random) -> float:
    """|e|² <= L² E_K <= 18 B² L² (K eta)² |c|² for Mime, as long as K eta <= 1 / (2 B L).

    E_K is the drift, B bounds U(g) by B |g|, L is the smoothness of every client. At the optimum c is zero, so is e:
    that is the error returned.
    """
    quadratics, errors = _random_quadratics(rng), []
    L = max(np.linalg.norm(hessian, 2) for hessian in quadratics.hessians)
    x = quadratics.optimum + rng.normal(size=DIM)
    for base, s in ((o.sgd(), ()), (o.adagrad(), AdaptiveState(None, Vector({"x": rng.uniform(0.1, 3, DIM)})))):
        scale = np.asarray(base.update(Vector({"x": np.ones(DIM)}), s).tree["x"])
        B = scale.max()
        total = float(rng.uniform(0.1, 1.0)) / (2 * B * L)
        mime = a.mime(base, total / STEPS)
        c, e, drift = _quadratic_round(mime, s, scale, quadratics, x)
        assert e @ e <= L**2 * drift * (1 + 1e-9)
        assert 0 < drift <= 18 * B**2 * total**2 * (c @ c)
        errors.append(np.abs(_quadratic_round(mime, s, scale, quadratics, quadratics.optimum).e).max())
    return max(errors)


def test_mime_lite_has_no_such_bound() -> None:
    """At the optimum clients of MimeLite drift although c is zero."""
    quadratics = _random_quadratics(np.random.default_rng(0))
    c, _, drift = _quadratic_round(a.mime_lite(o.sgd(), 0.1), (), np.ones(DIM), quadratics, quadratics.optimum)
    assert drift > 1e-3
    assert c @ c < 1e-20
