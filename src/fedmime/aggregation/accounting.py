r"""Privacy accounting: the ε, at a given δ, of everything that a run has released about its clients.

A release is a sum of clipped messages, one of each client of the cohort, plus Gaussian noise whose standard deviation
is z times the clipping norm. A `Ledger` counts releases, and `epsilon` is a pure function of it, so that a run that was
interrupted and continued reports what an unbroken one does.

Releases of one round concern the same clients. Together, k of them are one Gaussian mechanism with noise $z/\sqrt k$
behind one draw of the cohort, even if the later ones depend on the earlier ones. Mime releases c and the mean update:
k = 2.

What two neighbouring populations are depends on the sampling:

- `"poisson"`: one client more or less. It moves a sum by at most the clipping norm. The privacy loss distribution is
  that of dp-accounting.
- `"fixed"`: one client replaced by another, because cohorts of equal size tell the two apart from one client more or
  less. It moves a sum by up to twice the clipping norm. For the mechanism's profile $\delta(\varepsilon)$ on a given
  cohort and q = cohort / population, a drawn cohort has $\delta'(\log(1 + q (e^\varepsilon - 1))) \le q\,
  \delta(\varepsilon)$ in both directions (Balle, Barthe and Gaboardi, 2018, https://arxiv.org/abs/1807.01647, for
  sampling without replacement). The privacy loss distribution is that of this bound, which holds for every round, and
  is composed like the other.

So the two kinds of ε are guarantees about different things and cannot be compared as numbers. Both are upper bounds:
distributions are rounded pessimistically, and a hundredth of δ is set aside for rounding errors. A cohort that is the
whole population is not sampled, and the exact ε of the Gaussian mechanism applies.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from fedmime.errors import ConfigError
from fedmime.validation import NON_NEGATIVE, POSITIVE, Range, choice, count, real

MOST_RELEASES = 3  # of one cohort in a round
DELTA = Range(lambda v: 1e-9 <= v < 1, "lie in [1e-9, 1)")  # smaller ones drown in the errors of Fourier transforms
_SET_ASIDE = 0.01  # share of δ for those errors
_TAIL = 1e-9  # share of δ that the discretized loss of each round may count as infinite
_LARGEST_EXPONENT = 600.0  # beyond, exponentials overflow
_BLOCK = 32  # rounds that are composed in one go, see _after
_LARGEST_NOISE, _SMALLEST_NOISE, _PRECISION = 2.0**20, 2.0**-5, 1e-4  # of the search for noise


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How the cohorts of a run are drawn, as far as privacy depends on it.

    Attributes:
        kind: `"poisson"`, each client independently with probability cohort / population, or `"fixed"`, uniformly among
            all cohorts of a size.
        cohort: the expected or fixed number of clients.
        population: the number of clients that can be drawn.
    """

    kind: Literal["poisson", "fixed"]
    cohort: int
    population: int

    def __post_init__(self) -> None:
        choice("sampling", "kind", self.kind, ("poisson", "fixed"))
        count("sampling", "population", self.population, 1)
        count("sampling", "cohort", self.cohort, 1, self.population)

    @property
    def probability(self) -> float:
        """That a given client is drawn in a round."""
        return self.cohort / self.population


@dataclasses.dataclass(frozen=True, eq=False)
class Ledger:
    """What a run has released so far. Rounds are only ever added, by `add`, which returns a new ledger.

    Attributes:
        noise_multiplier: z of every release, relative to the clipping norm.
        sampling: how cohorts were drawn.
        counts: rounds by their number of releases, 0, 1, 2 or 3 [4] int64; what a checkpoint has to keep.
    """

    noise_multiplier: float
    sampling: Sampling
    counts: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(MOST_RELEASES + 1, np.int64))

    def __post_init__(self) -> None:
        real("ledger", "noise_multiplier", self.noise_multiplier, NON_NEGATIVE)
        given = np.asarray(self.counts)
        if given.shape != (MOST_RELEASES + 1,) or given.dtype.kind not in "iu" or (given < 0).any():
            raise ConfigError(f"ledger: counts must be {MOST_RELEASES + 1} integers, none negative, got {given!r}")
        own = given.astype(np.int64)
        own.setflags(write=False)
        object.__setattr__(self, "counts", own)

    def add(self, releases: int, rounds: int = 1) -> Ledger:
        """The ledger after rounds in which so many messages of the same cohort were released.

        A run charges every round with all that it may release: one message for each point of full gradients, and one
        more if clients train. Abandoned rounds are charged alike, even if nothing was released in them, so that ε
        stays an upper bound.
        """
        count("ledger", "releases", releases, 0, MOST_RELEASES)
        counts = self.counts.copy()
        counts[releases] += count("ledger", "rounds", rounds)
        return dataclasses.replace(self, counts=counts)

    @property
    def rounds(self) -> int:
        """The number of rounds, with those that released nothing."""
        return int(self.counts.sum())


def epsilon(ledger: Ledger | Sequence[Ledger], delta: float) -> float:
    """An upper bound of ε at δ for everything in a ledger: 0 if nothing was released, infinite with hardly any noise.

    Args:
        ledger: of a run; several if it was continued with other noise or cohorts, all with the same kind of sampling.
        delta: δ in [1e-9, 1), well below 1 / population.
    """
    delta = real("epsilon", "delta", delta, DELTA)
    ledgers = [ledger] if isinstance(ledger, Ledger) else list(ledger)
    if len({one.sampling.kind for one in ledgers}) > 1:
        raise ConfigError("epsilon: ledgers of 'poisson' and 'fixed' sampling bound different things; give them apart")
    parts = [
        _Part(one, releases, int(rounds))
        for one in ledgers
        for releases, rounds in enumerate(one.counts)
        if releases and rounds
    ]
    if not parts:
        return 0.0
    if any(one.noise_multiplier == 0 for one, _, _ in parts):
        return math.inf
    if all(one.sampling.probability == 1 for one, _, _ in parts):
        return _unsampled(parts, delta)
    tail = delta * _TAIL
    step = _step(parts, math.log(tail))
    if step > _LARGEST_EXPONENT:  # so little noise that ε would be in the millions
        return math.inf
    plds = [
        _after(_Round(one.noise_multiplier / math.sqrt(releases), one.sampling, step, tail), rounds)
        for one, releases, rounds in parts
    ]
    total = functools.reduce(lambda a, b: a.compose(b, _cut(tail)), plds)
    return float(total.get_epsilon_for_delta(delta * (1 - _SET_ASIDE)))


def noise_for(
    target_epsilon: float,
    delta: float,
    sampling: Sampling,
    rounds: int,
    releases: int = 1,
    gradient_rounds: int = 0,
    gradient_releases: int = 1,
) -> float:
    """The least noise multiplier z, up to 0.01 %, with which a run stays within ε at δ.

    Args:
        target_epsilon: ε.
        rounds: rounds of the whole run.
        releases: messages of the same cohort that a round releases: 1 for FedAvg, 2 for Mime and MimeLite.
        gradient_rounds: how many of the rounds are gradient-only rounds (`Algorithm.gradient_rounds`).
        gradient_releases: messages that such a round releases: as many as there are points of gradients.
    """
    target = real("noise_for", "target_epsilon", target_epsilon, POSITIVE)
    count("noise_for", "rounds", rounds, 1)
    count("noise_for", "releases", releases, 1, MOST_RELEASES)
    count("noise_for", "gradient_rounds", gradient_rounds, 0, rounds)
    count("noise_for", "gradient_releases", gradient_releases, 1, MOST_RELEASES)

    def private(z: float) -> bool:
        ledger = Ledger(z, sampling).add(gradient_releases, gradient_rounds).add(releases, rounds - gradient_rounds)
        return epsilon(ledger, delta) <= target

    high = 1.0
    while not private(high):
        high *= 2
        if high > _LARGEST_NOISE:
            raise ConfigError(f"noise_for: no noise reaches target_epsilon={target_epsilon!r}; raise it")
    while high > _SMALLEST_NOISE and private(high / 2):
        high /= 2
    low = high / 2
    while high > _SMALLEST_NOISE and high / low > 1 + _PRECISION:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if private(middle) else (middle, high)
    return high


class _Part(NamedTuple):
    """The rounds of a ledger that have the same number of releases."""

    ledger: Ledger
    releases: int
    rounds: int


class _Round(NamedTuple):
    """What decides the privacy loss distribution of one round."""

    noise: float  # z / √k
    sampling: Sampling
    step: float  # of the grid of losses
    tail: float  # the probability that may be counted as an infinite loss


def _unsampled(parts: list[_Part], delta: float) -> float:
    """ε of Gaussian mechanisms without sampling, which together are a single one."""
    _dp_accounting()
    from dp_accounting import get_epsilon_gaussian

    squares = sum(rounds * releases / one.noise_multiplier**2 for one, releases, rounds in parts)
    noise = 1 / (_sensitivity(parts[0].ledger.sampling) * math.sqrt(squares))
    tolerance = 1e-12
    return float(get_epsilon_gaussian(noise, delta, tolerance)) + tolerance


def _sensitivity(sampling: Sampling) -> int:
    """How far neighbouring populations move a sum, as a multiple of the clipping norm."""
    return 2 if sampling.kind == "fixed" else 1


def _step(parts: list[_Part], log_tail: float) -> float:
    """The step of the grid of losses, which does not depend on the numbers of rounds.

    Rounding a loss to a grid adds at most a quarter of the squared step to its variance in each round. A quarter of the
    loss's standard deviation therefore costs less than one percent of ε. Where few clients are drawn the loss has a
    long tail, and the step is large enough for a round to need about 5,000 points. At 50 of 342,477 clients and z = 1
    that costs about five percent.
    """
    fine, coarse = math.inf, 0.0
    for ledger, releases, _ in parts:
        q, shift = ledger.sampling.probability, _sensitivity(ledger.sampling) / ledger.noise_multiplier
        deviation = q * math.sqrt(math.expm1(min(shift**2, _LARGEST_EXPONENT)))
        fine = min(fine, deviation / 4, max(0.02, 0.01 * shift))
        shift *= math.sqrt(releases)
        exponent = shift**2 / 2 + shift * math.sqrt(-2 * log_tail)  # of the largest ratio of densities
        sampled = math.log1p(q * math.expm1(min(exponent, _LARGEST_EXPONENT)))
        coarse = max(coarse, (sampled + max(0, exponent - _LARGEST_EXPONENT)) / 5000)
    return max(fine, coarse)


def _after(one: _Round, rounds: int) -> Any:
    """The privacy loss distribution after many such rounds.

    Composing a distribution with itself takes some 10 ms, and a run asks after every round. So the rounds are split
    into whole blocks and a rest, both of which are remembered; to compose the two takes 1 ms.
    """
    blocks, rest = rounds // _BLOCK * _BLOCK, rounds % _BLOCK
    if not blocks or not rest:
        return _composed(one, rounds)
    return _composed(one, blocks).compose(_composed(one, rest), _cut(one.tail))


@functools.lru_cache(maxsize=_BLOCK + 16)
def _composed(one: _Round, rounds: int) -> Any:
    """The privacy loss distribution of one round, composed with itself."""
    return _single(one).self_compose(rounds, _cut(one.tail)) if rounds > 1 else _single(one)


def _cut(tail: float) -> float:
    """The probability that composing may count as an infinite loss: more than a round may, and little of δ."""
    return tail * 1e4


@functools.lru_cache(maxsize=8)
def _single(one: _Round) -> Any:
    """The privacy loss distribution of one round."""
    _dp_accounting()
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution, privacy_loss_mechanism

    q = one.sampling.probability
    if one.sampling.kind == "poisson":
        return privacy_loss_distribution.from_gaussian_mechanism(
            one.noise,
            value_discretization_interval=one.step,
            log_mass_truncation_bound=math.log(one.tail),
            sampling_prob=q,
        )
    # Subsampling by the bound of the module's docstring is, for ε >= 0, what sampling does to a client that is removed.
    # The bound holds in both directions, which decides ε < 0: δ(-ε) = 1 - exp(-ε) + exp(-ε) δ(ε).
    removed = privacy_loss_mechanism.GaussianPrivacyLoss(
        one.noise,
        sensitivity=_sensitivity(one.sampling),
        log_mass_truncation_bound=math.log(one.tail),
        sampling_prob=q,
        adjacency_type=privacy_loss_mechanism.AdjacencyType.REMOVE,
    )
    upper = math.ceil((removed.connect_dots_bounds().epsilon_upper or 0) / one.step)
    losses = np.arange(upper + 1) * one.step
    deltas = np.asarray(removed.get_delta_for_epsilon(losses.tolist()))
    mirrored = -np.expm1(-losses) + np.exp(-losses) * deltas
    profile = np.concatenate([mirrored[:0:-1], deltas])
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(one.step, -upper, upper, profile)
    return privacy_loss_distribution.PrivacyLossDistribution(pmf)


def _dp_accounting() -> None:
    """Check that dp-accounting is installed. It takes a second to import, so only what uses it does."""
    try:
        import dp_accounting  # noqa: F401
    except ImportError:
        raise ConfigError("privacy: ε is computed by dp-accounting, an extra: pip install 'fedmime[privacy]'") from None
