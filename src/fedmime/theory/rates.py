r"""What the constants say: rounds to $\|\nabla f\|^2 \le \epsilon$ by the paper's rates, local steps, MVR's numbers."""

from __future__ import annotations

import math
from typing import NamedTuple

from fedmime.theory.constants import Constants
from fedmime.validation import POSITIVE, UNIT, count, flag, made, real

_MOST_STEPS = 1_000_000  # of a suggestion: clients with equal Hessians could go on for ever
_ROUNDING = 1e-9  # relative, of L/δ: what is a whole number but for rounding counts as one


class Row(NamedTuple):
    """One method's rate: its terms by their formula, in rounds. Constant factors and logarithms are left out."""

    method: str
    family: str  # "SCAFFOLD", "SGD", "momentum", "Adam", "MVR" or "lower bound"
    terms: dict[str, float]
    condition: str = ""  # what the rate needs of K or S
    holds: bool = True  # whether that is so here

    @property
    def rounds(self) -> float:
        """All terms together; infinite where the rate says nothing."""
        return sum(self.terms.values())

    @property
    def dominating(self) -> str:
        """The largest term's formula."""
        return max(self.terms, key=lambda name: self.terms[name])


def rounds_table(
    constants: Constants, eps: float, S: int, K: int, *, F: float = 1.0, N: int | None = None, beta: float = 0.9
) -> list[Row]:
    r"""The paper's Table 1 with these constants: rounds until $\|\nabla f\|^2 \le \epsilon$ for non-convex f.

    Rates, not predictions: constant factors are left out, so only ratios between rows mean something. $F$ is
    $f(x_0) - f^\star$, which the table leaves out (as $F = 1$) and the theorems have. Four readings of the paper:
    MimeLite's drift term is $L\tilde G F/\epsilon^{3/2}$, as the proof gives it, where the table prints $L^2$;
    MimeLite's rows with SGD and Adam have the $\tilde G^2 = G^2 + \sigma^2/K$ of the corollaries for $G^2$, and so need
    no $K \ge \sigma^2/G^2$, by which the table does without it; with $K < L/\delta$ the theorem's $LF/(K\epsilon)$ is
    added to the MVR rows, which the table leaves out as it asks for $K \ge L/\delta$; and momentum, which is not in the
    table, has the rates of SGD divided by $1 - \beta$, which the text quotes as what was proven before. That momentum
    helps is what the MVR rows show: MVR is momentum with one more correction.

    Args:
        K: local steps of a client.
        N: clients of the population, for SCAFFOLD; by default that of the constants, infinitely many if unknown.
        beta: of the momentum rows.
    """
    made("rounds_table", "constants", constants, Constants, "come from fm.theory.constants")
    real("rounds_table", "eps", eps, POSITIVE)
    real("rounds_table", "F", F, POSITIVE)
    real("rounds_table", "beta", beta, UNIT)
    count("rounds_table", "S", S, least=1)
    count("rounds_table", "K", K, least=1)
    G2, sigma2, L, delta = constants.G2, constants.sigma2, constants.L, constants.delta
    N = constants.population if N is None else count("rounds_table", "N", N, least=1)
    G, mixed = math.sqrt(G2), G2 + sigma2 / K
    sgd = {"LG²F/(Sε²)": L * G2 * F / (S * eps**2), "LF/ε": L * F / eps}
    fedavg = {
        "LG̃²F/(Sε²)": L * mixed * F / (S * eps**2),
        "LG̃F/ε^1.5": L * math.sqrt(mixed) * F / eps**1.5,
        "LF/ε": L * F / eps,
    }
    short = {"LF/(Kε)": L * F / (K * eps)} if delta * K < L * (1 - _ROUNDING) else {}
    mime_mvr = {
        "δGF/(√S·ε^1.5)": delta * G * F / (math.sqrt(S) * eps**1.5),
        "G²/(Sε)": G2 / (S * eps),
        "δF/ε": delta * F / eps,
    }
    lite_mvr = {
        "δ(G+σ)F/ε^1.5": delta * (G + math.sqrt(sigma2)) * F / eps**1.5,
        "(G²+σ²)/ε": (G2 + sigma2) / eps,
        "δF/ε": delta * F / eps,
    }
    server_mvr = {"LGF/(√S·ε^1.5)": L * G * F / (math.sqrt(S) * eps**1.5), "LF/ε": L * F / eps}
    scaffold = math.inf if N is None else (N / S) ** (2 / 3) * L * F / eps
    return [
        Row("SCAFFOLD", "SCAFFOLD", {"(N/S)^⅔·LF/ε": scaffold}, "clients seen again", N is not None),
        Row("Server-only SGD", "SGD", sgd),
        Row("MimeLite SGD = FedAvg", "SGD", fedavg),
        Row("Mime SGD", "SGD", sgd),
        Row("Server-only momentum", "momentum", _damped(sgd, beta)),
        Row("MimeLite momentum", "momentum", _damped(fedavg, beta)),
        Row("Mime momentum", "momentum", _damped(sgd, beta)),
        _adam("Server-only Adam", L * F, eps, S, "G²", G2),
        _adam("MimeLite Adam", math.sqrt(S) * L * F, eps, S, "G̃²", mixed, "√S·"),
        _adam("Mime Adam", L * F, eps, S, "G²", G2),
        Row("Server-only MVR", "MVR", server_mvr),
        Row("MimeLiteMVR", "MVR", lite_mvr | short, "K ≥ L/δ", not short),
        Row("MimeMVR", "MVR", mime_mvr | short, "K ≥ L/δ", not short),
        Row("any server-only method", "lower bound", server_mvr | {"G²/(Sε)": G2 / (S * eps)}),
    ]


def _damped(sgd: dict[str, float], beta: float) -> dict[str, float]:
    """The rate of momentum (1-β)g + βm from that of SGD: every term divided by 1-β."""
    return {f"{term}/(1−β)": rounds / (1 - beta) for term, rounds in sgd.items()}


def _adam(method: str, scale: float, eps: float, S: int, symbol: str, noise: float, factor: str = "") -> Row:
    """Adam's rate: it stalls unless the noise of a cohort's gradient, G²/S or for MimeLite G̃²/S, is below ε."""
    holds = eps > noise / S
    rounds = scale / (eps - noise / S) if holds else math.inf
    return Row(method, "Adam", {f"{factor}LF/(ε−{symbol}/S)": rounds}, f"S > {symbol}/ε", holds)


def favoured(table: list[Row]) -> Row:
    """The method with the fewest rounds, among those that can be run on clients seen once."""
    return min((row for row in table if row.family not in ("SCAFFOLD", "lower bound")), key=lambda row: row.rounds)


def suggested_steps(constants: Constants) -> int:
    r"""The number of local steps that the theory asks for, $K = \lceil L/\delta\rceil$: more gain nothing in rounds."""
    made("suggested_steps", "constants", constants, Constants, "come from fm.theory.constants")
    if constants.delta * _MOST_STEPS <= constants.L:
        return _MOST_STEPS if constants.L else 1
    return max(1, math.ceil(constants.L / constants.delta * (1 - _ROUNDING)))


def mvr_parameters(constants: Constants, S: int, K: int, T: int, F: float, lite: bool = False) -> tuple[float, float]:
    r"""The client rate η and $a = 1 - \beta$ with which the theorem on MimeMVR (or MimeLiteMVR) holds.

    $\eta = \min(\frac1L, \frac1{864\delta K}, (\frac{S F}{6936 K^3 T \delta^2 G^2})^{1/3})$ and
    $a = \max(1536\eta^2\delta^2K^2, \frac1T)$; MimeLiteMVR has $1/(G^2+\sigma^2)$ for $S/G^2$. The constants of proofs
    are careful: in practice larger rates do better.

    Args:
        F: $f(x_0) - f^\star$; for a loss that is never negative, $f(x_0)$ is a bound.
    """
    made("mvr_parameters", "constants", constants, Constants, "come from fm.theory.constants")
    for name, value in (("S", S), ("K", K), ("T", T)):
        count("mvr_parameters", name, value, least=1)
    real("mvr_parameters", "F", F, POSITIVE)
    variance = constants.G2 + constants.sigma2 if flag("mvr_parameters", "lite", lite) else constants.G2 / S
    L, delta = constants.L, constants.delta
    noise = 6936 * K**3 * T * delta**2 * variance
    eta = min(_inverse(L), _inverse(864 * delta * K), (F * _inverse(noise)) ** (1 / 3))
    if math.isinf(eta):
        return eta, 1 / T
    return eta, min(1.0, max(1536 * (eta * delta * K) ** 2, 1 / T))


def _inverse(value: float) -> float:
    return 1 / value if value > 0 else math.inf
