"""ε against formulas, integrals, simulations and published values, none of them from the library that computes it."""

import builtins
import math
import time

import numpy as np
import pytest
from scipy import integrate, special

from fedmime.aggregation import accounting
from fedmime.aggregation.accounting import Ledger, Sampling, epsilon, noise_for
from fedmime.errors import ConfigError

DELTA = 1e-5


def _spent(z: float, sampling: Sampling, releases: int = 1, rounds: int = 1, delta: float = DELTA) -> float:
    return epsilon(Ledger(z, sampling).add(releases, rounds), delta)


def _gaussian_delta(eps: float, mu: float) -> float:
    """δ of N(μ, 1) against N(0, 1) (Balle and Wang, 2018, theorem 8)."""
    return special.ndtr(mu / 2 - eps / mu) - math.exp(eps + special.log_ndtr(-mu / 2 - eps / mu))


def _density(x: np.ndarray, mean: float, z: float) -> np.ndarray:
    return np.exp(-(((x - mean) / z) ** 2) / 2) / (z * math.sqrt(2 * math.pi))


def _mixture_delta(eps: float, z: float, q: float, shift: float) -> float:
    """δ of one round by integration, the larger of both orders: the client in a share q of cohorts, or in none."""

    def upper(x):
        return (1 - q) * _density(x, 0, z) + q * _density(x, shift, z)

    ends = (-40 * z, shift + 40 * z)
    points = np.linspace(-8 * z, shift + 8 * z, 40)
    both = (
        lambda x: max(0.0, upper(x) - math.exp(eps) * _density(x, 0, z)),
        lambda x: max(0.0, _density(x, 0, z) - math.exp(eps) * upper(x)),
    )
    return max(integrate.quad(f, *ends, points=points, limit=400, epsabs=1e-13)[0] for f in both)


@pytest.mark.parametrize("z", [0.6, 1.0, 4.0])
@pytest.mark.parametrize("rounds", [1, 7, 400])
@pytest.mark.parametrize("releases", [1, 2])
def test_without_sampling_it_is_the_analytic_gaussian_mechanism(z: float, rounds: int, releases: int) -> None:
    for kind, sensitivity in (("poisson", 1), ("fixed", 2)):
        spent = _spent(z, Sampling(kind, 9, 9), releases, rounds)
        mu = sensitivity * math.sqrt(rounds * releases) / z
        assert _gaussian_delta(spent, mu) == pytest.approx(DELTA, rel=1e-5)


@pytest.mark.parametrize(("q", "z"), [((1, 100), 1.0), ((1, 10), 0.7), ((1, 2), 2.0), ((3, 1000), 0.5)])
def test_one_sampled_round_against_integration(q: tuple[int, int], z: float) -> None:
    for kind, shift in (("poisson", 1), ("fixed", 2)):
        for releases in (1, 2):
            sampling = Sampling(kind, *q)
            spent = _spent(z, sampling, releases)
            given = z / math.sqrt(releases), sampling.probability, shift
            assert _mixture_delta(spent, *given) <= DELTA
            assert _mixture_delta(0.98 * spent - 1e-3, *given) > DELTA


@pytest.mark.parametrize(("kind", "shift"), [("poisson", 1), ("fixed", 2)])
@pytest.mark.parametrize("removed", [True, False])
def test_many_rounds_against_simulation(kind: str, shift: int, removed: bool) -> None:
    """δ at the reported ε is the mean of max(0, 1 - exp(ε - loss)) over simulated runs; the loss is a sum."""
    z, q, rounds, runs, delta = 1.5, 0.1, 60, 100_000, 0.01
    random = np.random.default_rng(0)
    spent = _spent(z, Sampling(kind, 10, 100), 1, rounds, delta)
    loss = np.zeros(runs)
    for _ in range(rounds):
        x = z * random.standard_normal(runs)
        if removed:
            x += shift * (random.random(runs) < q)
        ratio = np.log1p(q * np.expm1((shift * x - shift**2 / 2) / z**2))
        loss += ratio if removed else -ratio
    terms = np.maximum(0, -np.expm1(spent - loss))
    error = 4 * terms.std() / math.sqrt(runs)
    assert terms.mean() - error <= delta
    if removed and kind == "poisson":
        assert terms.mean() + error >= 0.95 * delta


@pytest.mark.parametrize(("z", "epochs", "published"), [(1.12, 60, 2.92), (0.6, 30, 9.74), (1.2, 10, 1.20)])
def test_published_values_of_a_looser_accountant(z: float, epochs: int, published: float) -> None:
    """TensorFlow Privacy's table for MNIST (tutorials/README.md): Rényi accounting, 256 of 60,000, δ = 1e-5."""
    spent = _spent(z, Sampling("poisson", 256, 60_000), 1, epochs * 60_000 // 256)
    assert 0.65 * published < spent < published


def test_two_releases_of_a_cohort_cost_more_than_one_and_less_than_four() -> None:
    sampling = Sampling("poisson", 10, 1000)
    once, twice, rounds = _spent(1, sampling, 1, 100), _spent(1, sampling, 2, 100), _spent(1, sampling, 1, 400)
    assert once < _spent(1, sampling, 1, 200) < twice
    assert _spent(math.sqrt(2), sampling, 2, 100) == pytest.approx(once, rel=0.01)
    assert once < rounds


def test_epsilon_is_a_function_of_the_ledger_and_grows_with_every_release() -> None:
    start, delta = Ledger(1.0, Sampling("poisson", 10, 1000)), 1e-5
    unbroken, spent = start.add(1, 3), []
    for _ in range(70):
        unbroken = unbroken.add(2)
        spent.append(epsilon(unbroken, delta))
    assert (np.diff(spent) > 0).all()
    half = start.add(1, 3).add(2, 35)
    for function in (accounting._composed, accounting._single):  # as in a new process
        function.cache_clear()
    saved = half.counts.tobytes()
    resumed = Ledger(1.0, start.sampling, np.frombuffer(saved, np.int64)).add(2, 35)
    assert epsilon(resumed, delta) == spent[-1] == epsilon(unbroken, delta)
    assert resumed.counts.tolist() == [0, 3, 70, 0]
    assert resumed.rounds == 73
    assert epsilon(unbroken.add(0, 5), delta) == spent[-1]
    assert epsilon(unbroken.add(1), delta) > spent[-1]


def test_nothing_released_no_noise_and_several_ledgers() -> None:
    sampling = Sampling("poisson", 10, 1000)
    assert epsilon(Ledger(1.0, sampling), DELTA) == 0.0
    assert epsilon(Ledger(0.0, sampling).add(0, 9), DELTA) == 0.0
    assert epsilon(Ledger(0.0, sampling).add(1), DELTA) == math.inf
    first, second = Ledger(1.0, sampling).add(2, 40), Ledger(2.0, sampling).add(1, 60)
    both = epsilon([first, second], DELTA)
    assert max(epsilon(first, DELTA), epsilon(second, DELTA)) < both < 2 * epsilon(first, DELTA)
    assert epsilon([first, first], DELTA) == pytest.approx(epsilon(first.add(2, 40), DELTA), rel=1e-5)
    with pytest.raises(ConfigError, match="different things"):
        epsilon([first, Ledger(1.0, Sampling("fixed", 10, 1000))], DELTA)


@pytest.mark.parametrize("kind", ["poisson", "fixed"])
@pytest.mark.parametrize("target", [0.5, 8.0])
def test_noise_for_a_target_is_enough_and_little_more(kind: str, target: float) -> None:
    sampling = Sampling(kind, 50, 2000)
    z = noise_for(target, DELTA, sampling, 100, releases=2, gradient_rounds=1)
    ledger = lambda noise: Ledger(noise, sampling).add(1).add(2, 99)
    assert epsilon(ledger(z), DELTA) <= target < epsilon(ledger(z * 0.995), DELTA)


def test_extremes_stay_finite() -> None:
    for kind in ("poisson", "fixed"):
        for z in (0.05, 0.3, 50.0):
            for cohort, population in ((1, 100_000), (99, 100)):
                spent = _spent(z, Sampling(kind, cohort, population), 2, 50)
                assert 0 <= spent < 1e6


def test_asking_after_every_round_is_cheap(fact) -> None:
    ledger = Ledger(1.0, Sampling("poisson", 10, 1000))
    start = time.process_time()
    for _ in range(300):
        ledger = ledger.add(2)
        epsilon(ledger, DELTA)
    spent = (time.process_time() - start) / 300
    fact("seconds of ε a round", spent)
    assert spent < 0.02  # alone on a machine it is a tenth


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def missing(name, *args, **kwargs):
        if name.startswith("dp_accounting"):
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    for cohort in (7, 70):
        with pytest.raises(ConfigError, match=r"^privacy: .* pip install 'fedmime\[privacy\]'$"):
            _spent(1.234, Sampling("poisson", cohort, 70))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Sampling("uniform", 1, 2), "sampling: kind must be one of 'poisson', 'fixed', got 'uniform'"),
        (lambda: Sampling("fixed", 3, 2), "sampling: cohort must be a whole number of at least 1 and at most 2, got 3"),
        (lambda: Ledger(-1.0, Sampling("fixed", 1, 2)), "ledger: noise_multiplier must not be negative"),
        (lambda: Ledger(1.0, Sampling("fixed", 1, 2), np.array([1, -1, 0, 0])), "counts must be 4 integers"),
        (lambda: Ledger(1.0, Sampling("fixed", 1, 2)).add(4), "releases must be a whole number"),
        (lambda: Ledger(1.0, Sampling("fixed", 1, 2)).add(1, -3), "rounds must be a whole number"),
        (lambda: epsilon(Ledger(1.0, Sampling("fixed", 1, 2)), 0.0), r"epsilon: delta must lie in \[1e-9, 1\)"),
        (lambda: noise_for(0, 1e-5, Sampling("fixed", 1, 2), 5), "noise_for: target_epsilon must be positive"),
        (lambda: noise_for(1, 1e-5, Sampling("fixed", 1, 2), 5, 1, 6), "gradient_rounds must be a whole number"),
    ],
)
def test_refusals(call, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()


def test_ledgers_cannot_be_rewritten() -> None:
    ledger = Ledger(1.0, Sampling("fixed", 1, 2)).add(1)
    with pytest.raises(ValueError, match="read-only"):
        ledger.counts[1] = 0


def test_hardly_any_noise_is_no_error() -> None:
    for sampling in (Sampling("poisson", 4, 8), Sampling("fixed", 4, 8)):
        known = [_spent(z, sampling, releases=2, rounds=3) for z in (0.1, 0.01, 1e-3, 1e-4, 1e-9, 0)]
        assert known == sorted(known)
        assert known[-2] == math.inf
