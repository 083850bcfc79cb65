"""The lemmas of the paper's appendix as properties, on random problems with known constants.

Expectations over clients, cohorts and mini-batches are taken exactly, by going through all of them.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import fedmime as fm
from fedmime.algorithms.mvr import MVRState
from fedmime.experiments.theory_landscape import landscape
from fedmime.experiments.theory_loop import play
from fedmime.optimizers.base import AdaptiveState
from fedmime.vector import Vector

N, DIM, EPOCH, K = 6, 5, 3, 6
a, o = fm.algorithms, fm.optimizers


def lemma(law):
    """A test that draws a problem for a law, which asserts it and returns how much of the bound was used."""

    def test(fact):
        shares = [0.0]

        @settings(max_examples=20, phases=[Phase.generate])
        @given(st.integers(0, 2**32 - 1))
        def holds(seed):
            share = law(np.random.default_rng(seed))
            assert share <= 1 + 1e-9
            shares.append(share)

        holds()
        assert max(shares) > 1e-4  # a bound that nothing comes near shows nothing
        fact("lemmas: share of the bound used", max(shares))

    test.__name__, test.__doc__ = law.__name__, law.__doc__
    return test


def _problem(random):
    """A landscape, its δ, a point, and ∇f, G², σ² there; half of the problems are non-convex."""
    delta, bend = float(random.uniform(0.01, 1)), float(random.choice([0.0, 0.2]))
    G2, sigma2 = random.uniform(0.01, 2, 2)
    options = {"G2": G2, "sigma2": sigma2, "aligned": bool(random.integers(2)), "seed": int(random.integers(2**31))}
    land = landscape(delta, bend=bend, clients=N, dim=DIM, examples=EPOCH, smallest=1e-2, **options)
    return land, delta, random.normal(size=DIM)


def _gradients(land, x):
    return np.asarray(land.gradients(jnp.asarray(x), jnp.arange(N)))


def _spread(gradients):
    return float(np.mean(np.sum((gradients - gradients.mean(0)) ** 2, axis=1)))


def _square(v):
    return float(v @ v)


@lemma
def test_similarity(random):
    """‖∇fᵢ(y) − ∇fᵢ(x) + ∇f(x) − ∇f(y)‖² ≤ δ²‖y − x‖², for every client."""
    land, delta, x = _problem(random)
    y = x + random.normal(size=DIM) * float(random.uniform(0.01, 3))
    change = _gradients(land, y) - _gradients(land, x)
    return max(_square(own - change.mean(0)) for own in change) / (delta**2 * _square(y - x))


@lemma
def test_similarity_of_logistic_losses(random):
    """The same where Hessians change on the way: δ is their largest distance between x and y."""
    features = random.normal(size=(4, 12, 3)) * random.uniform(0.5, 2, (4, 1, 1))
    labels = random.integers(0, 2, (4, 12))
    x, y = random.normal(size=(2, 3))

    def probability(z):
        return 1 / (1 + np.exp(-features @ z))

    def gradients(z):
        return np.einsum("cnd,cn->cd", features, probability(z) - labels) / 12

    def distance(z):
        p = probability(z)
        hessians = np.einsum("cnd,cn,cne->cde", features, p * (1 - p), features) / 12
        return max(np.linalg.norm(h - hessians.mean(0), 2) for h in hessians)

    delta = max(distance(x + t * (y - x)) for t in np.linspace(0, 1, 65))
    change = gradients(y) - gradients(x)
    return max(_square(own - change.mean(0)) for own in change) / (1.001 * delta**2 * _square(y - x))


def _scaled(random):
    """SGD, or AdaGrad whose statistics scale each coordinate; with B, which bounds U."""
    v = random.uniform(0.1, 3, DIM)
    base, s = (o.sgd(), ()) if random.integers(2) else (o.adagrad(), AdaptiveState(None, Vector(v)))
    return base, s, 1.0 if s == () else float(np.max(1 / (1e-7 + np.sqrt(v))))


_round = jax.jit(play)


def _drift(make, random, cohort):
    """The drift E_K of a round from a random point, with the numbers of its bound."""
    land, _, x = _problem(random)
    base, s, B = _scaled(random)
    total = float(random.uniform(0.05, 1)) / (2 * B * land.smoothness())
    algorithm = make(base, total / K)
    server = algorithm.start(Vector(x))._replace(s=s)
    clients, offsets = np.repeat(cohort, EPOCH), np.tile(np.arange(EPOCH), len(cohort))
    drift = float(_round(algorithm, server, land, jnp.asarray(clients), jnp.asarray(offsets), K)[1].drift)
    return land, x, 18 * B**2 * total**2, drift


@lemma
def test_drift_of_mime(random):
    """E_K ≤ 18 B² η̃² ‖c‖², c the cohort's mean gradient, for η̃ ≤ 1/(2BL)."""
    cohort = random.integers(N, size=3)
    land, x, scale, drift = _drift(a.mime, random, cohort)
    return drift / (scale * _square(_gradients(land, x)[cohort].mean(0)))


@lemma
def test_drift_of_mime_lite(random):
    """E_K ≤ 18 B² η̃² (‖∇f‖² + G² + σ²/2K), on average over all clients and orders."""
    land, x, scale, drift = _drift(a.mime_lite, random, np.arange(N))
    gradients = _gradients(land, x)
    sigma2 = float(np.mean(np.sum(np.asarray(land.noise) ** 2, axis=2), axis=1).max())
    return drift / (scale * (_square(gradients.mean(0)) + _spread(gradients) + sigma2 / (2 * K)))


COHORTS = [list(pair) for pair in itertools.product(range(N), repeat=2)]  # S = 2, drawn with replacement


def _momentum(random):
    """The errors e^t = m^t − ∇f(x^{t-1}) of one update of m, for every cohort; and all that it came from."""
    land, delta, x = _problem(random)
    x_old, m, beta = x + 0.3 * random.normal(size=DIM), random.normal(size=DIM), float(random.uniform(0, 0.99))
    now, before = _gradients(land, x), _gradients(land, x_old)
    server = MVRState(Vector(x), Vector(x_old), Vector(m), None, None)
    algorithm = a.server_only_mvr(0.1, beta)
    new = [algorithm.momentum(server, (Vector(now[c].mean(0)), Vector(before[c].mean(0)))).tree for c in COHORTS]
    errors = np.asarray(new) - now.mean(0)
    return errors, now, before, m - before.mean(0), 1 - beta, delta, x - x_old


@lemma
def test_recursion_of_the_momentum_error(random):
    """e^t = (1−a) e^{t−1} + (1−a)(h(x) − h(x°) − ∇f(x) + ∇f(x°)) + a (h(x) − ∇f(x)), exactly, cohort by cohort."""
    errors, now, before, old, share, _, _ = _momentum(random)
    wanted = [
        (1 - share) * old
        + (1 - share) * (now[c].mean(0) - before[c].mean(0) - now.mean(0) + before.mean(0))
        + share * (now[c].mean(0) - now.mean(0))
        for c in COHORTS
    ]
    np.testing.assert_allclose(errors, wanted, rtol=1e-9, atol=1e-12)
    return 1.0


@lemma
def test_bound_of_the_momentum_error(random):
    """E‖e^t‖² ≤ (1−a)²‖e^{t−1}‖² + 2(1−a)²δ²‖x − x°‖² + 2a²G²/S."""
    errors, now, _, old, share, delta, moved = _momentum(random)
    left = float(np.mean(np.sum(errors**2, axis=1)))
    keep = (1 - share) ** 2
    return left / (keep * _square(old) + 2 * keep * delta**2 * _square(moved) + 2 * share**2 * _spread(now) / 2)


@lemma
def test_bias_of_mime(random):
    """E_S‖∇fᵢ(y) − ∇fᵢ(x) + c − ∇f(y)‖² ≤ 2δ²‖y − x‖² + 2G²/S, for every client and any y."""
    land, delta, x = _problem(random)
    y = x + random.normal(size=DIM)
    here, there = _gradients(land, x), _gradients(land, y)
    worst = max(
        np.mean([_square(there[i] - here[i] + here[c].mean(0) - there.mean(0)) for c in COHORTS]) for i in range(N)
    )
    return float(worst) / (2 * delta**2 * _square(y - x) + 2 * _spread(here) / 2)


@lemma
def test_bias_of_mime_lite(random):
    """E‖∇fᵢ(yᵢ; ζ) − ∇f(yᵢ)‖² ≤ 2δ² E‖yᵢ − x‖² + 2G² + σ², where yᵢ may depend on the client."""
    land, delta, x = _problem(random)
    ys = x + random.normal(size=(N, DIM))
    errors = np.stack([_gradients(land, y)[i] - _gradients(land, y).mean(0) for i, y in enumerate(ys)])
    noisy = errors[:, None] - np.asarray(land.noise)
    sigma2 = float(np.mean(np.sum(np.asarray(land.noise) ** 2, axis=2)))
    moved = float(np.mean(np.sum((ys - x) ** 2, axis=1)))
    bound = 2 * delta**2 * moved + 2 * _spread(_gradients(land, x)) + sigma2
    return float(np.mean(np.sum(noisy**2, axis=2))) / bound


@lemma
def test_effective_steps_of_adam(random):
    """1/(H + ε) ≤ U(g)/g ≤ 1/ε in every coordinate, where gradients are at most H."""
    H, eps, beta2 = float(random.uniform(0.1, 5)), float(random.uniform(1e-3, 1)), float(random.uniform(0, 0.999))
    g = Vector(random.normal(size=DIM))
    low = []
    for base in (o.rmsprop(beta2, eps), o.adam(0.0, beta2, eps)):
        s = base.init(g)
        for _ in range(8):
            s = base.track(Vector(random.uniform(-H, H, DIM)), s)
            step = np.asarray(base.update(g, s).tree) / g.tree
            assert (step <= 1 / eps * (1 + 1e-12)).all()
            low.append(1 / (H + eps) / step.min())
    return max(low)


@pytest.mark.parametrize("size", [1.0, 2.0])
def test_a_step_that_is_too_long_may_break_the_bound(size):
    """The drift's bound needs η̃ ≤ 1/(2BL): far beyond it clients run away."""
    land = landscape(0.5, clients=N, dim=DIM, examples=EPOCH, smallest=1e-2)
    algorithm = a.mime(o.sgd(), 40 * size / K)
    server = algorithm.start(Vector(np.ones(DIM)))
    drift = float(_round(algorithm, server, land, jnp.arange(N), jnp.zeros(N, int), K)[1].drift)
    c = _gradients(land, np.ones(DIM)).mean(0)
    assert drift > 18 * (40 * size) ** 2 * _square(c)
