"""A diagnosis in sentences, and as plain data."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from fedmime.experiments.diagnose import Diagnosis
from fedmime.theory import Constants


def words(found: Diagnosis) -> list[str]:
    """What the figures mean, in sentences."""
    best, worst = found.favoured, found.worst
    alike = worst.L / worst.delta if worst.delta else math.inf
    said = [
        f"Hessians of clients differ by δ = {worst.delta:.3g} where f's own is L = {worst.L:.3g}: L/δ = {alike:.3g}. "
        + (
            "Clients are alike enough for local steps to save rounds."
            if alike >= 2
            else "Clients differ as much as f is curved, so the theory promises nothing from local steps."
        ),
        f"Take about K = {found.suggested_steps:,} local steps, beyond which more gain little; in the task's setting "
        f"an average client takes {found.steps:.3g}.",
        f"Fewest rounds by the rates: {best.method}, "
        + (
            f"{found.factor:.3g} times fewer than {found.server_only.method}, the best without local steps."
            if not best.method.startswith("Server-only")
            else "a method without local steps."
        )
        + f" Its largest term is {best.dominating}: {_meaning(best.dominating)}",
        "MVR's theorem takes η = {:.3g}, a = {:.3g} for MimeMVR".format(*found.mvr)
        + " and η = {:.3g}, a = {:.3g} for MimeLiteMVR".format(*found.lite_mvr)
        + f" (K = {found.suggested_steps:,}, T = {found.rounds:,}); rates in practice are larger.",
    ]
    noise = worst.G2 / found.cohort
    if noise > found.eps:
        said.append(
            f"A cohort's gradient is off by G²/S = {noise:.3g}, above ε = {found.eps:.3g}: Adam's rate stalls there; "
            f"it needs cohorts of {math.floor(worst.G2 / found.eps) + 1:,} clients."
        )
    return said


def caveats(found: Diagnosis) -> list[str]:
    """What the figures do not say."""
    few = found.curvature_examples
    where = "at the start only" if len(found.points) == 1 else f"at {len(found.points)} points of a short run"
    return [
        f"The constants are measured {where}; the theory's hold everywhere.",
        f"δ is the largest of {len(found.worst.deltas)} clients drawn: with 95 % confidence "
        f"{found.worst.covered:.0%} of all clients are no further. It also holds the noise of few examples a client"
        + (f", here {few} at most. " if few else ". ")
        + f"Half of them are within {found.worst.quantile(0.5):.3g}.",
        "δ is a worst case over directions, and clients may move along kinder ones: where the theory promises nothing, "
        "trying a larger K is still worth a run.",
        "Rates leave out constant factors: compare rows with one another, do not read them as rounds.",
        f"F = f(x₀) − f* is taken as f(x₀) = {found.F:.3g}, which bounds it for a loss that is never negative.",
        "Losses with dropout are measured without it.",
    ]


_MEANINGS = {
    "LG²F/(Sε²)": "noise of sampling clients; larger cohorts help.",
    "LG̃²F/(Sε²)": "noise of sampling clients; larger cohorts help.",
    "LF/ε": "the curvature of f, whatever the clients; only a better-conditioned model helps.",
    "LG̃F/ε^1.5": "drift of clients towards their own optima; Mime's correction removes it.",
    "δGF/(√S·ε^1.5)": "noise that momentum must average out; larger cohorts help.",
    "G²/(Sε)": "noise of sampling clients; larger cohorts help.",
    "δF/ε": "how far a client's Hessian is from f's; more alike clients help.",
    "δ(G+σ)F/ε^1.5": "noise of clients and mini-batches; Mime's correction divides it by the cohort.",
    "(G²+σ²)/ε": "noise of clients and mini-batches; Mime's correction divides it by the cohort.",
    "LGF/(√S·ε^1.5)": "noise that momentum must average out; larger cohorts help.",
    "LF/(Kε)": "too few local steps.",
}


def _meaning(term: str) -> str:
    return _MEANINGS.get(term, "the gradient noise that an adaptive method tolerates.")


def as_json(found: Diagnosis) -> dict[str, Any]:
    """Everything as plain data; what is infinite or unknown becomes None."""
    plain = {
        field.name: getattr(found, field.name)
        for field in dataclasses.fields(found)
        if field.name not in ("points", "worst", "table")
    }
    rows = [{**row._asdict(), "rounds": row.rounds, "dominating": row.dominating} for row in found.table]
    best = {"method": found.favoured.method, "factor": found.factor, "than": found.server_only.method}
    points = [{"round": at, **_constants(one)} for at, one in found.points]
    more = {"constants": _constants(found.worst), "points": points, "table": rows, "favoured": best}
    return _finite(plain | more | {"words": words(found), "caveats": caveats(found)})


def _constants(one: Constants) -> dict[str, Any]:
    intervals = None if one.intervals is None else one.intervals._asdict()
    cost = None if one.cost is None else one.cost._asdict()
    kept = ("G2", "sigma2", "L", "delta", "gradient_norm2", "loss", "covered", "deltas")
    return {name: getattr(one, name) for name in kept} | {"intervals": intervals, "cost": cost}


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
