"""How `reproduce theory` compares: fitted exponents beside the theory's, and factors in rounds."""

from __future__ import annotations

from typing import Any

from fedmime.experiments.theory_deviation import slope

_BY_DELTA = {
    "MimeMVR": "0 to 1",
    "MimeLiteMVR": "0 to 1",
    "Server-only MVR": "0",
    "Mime SGD": "0 (bound)",
    "FedAvg": "0 (bound)",
}


def factors(similarity: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """How many times fewer rounds MimeMVR takes than server-only MVR, by δ/L."""
    found = []
    for problem, rows in similarity.items():
        rounds = {(row["method"], row["delta"]): row["rounds"] for row in rows}
        for method, delta in rounds:
            ours, theirs = rounds["MimeMVR", delta], rounds["Server-only MVR", delta]
            if method == "MimeMVR" and ours and theirs:
                found.append({"problem": problem, "delta": delta, "factor": theirs / ours})
    return found


def slopes(data: dict[str, Any]) -> list[dict[str, Any]]:
    """Fitted exponents beside the theory's."""
    rows = [
        _slope(f"‖e‖ against η̃, {row['method']} {row['base']}, {row['problem']}", "1", row["slope"])
        for row in data["deviation"]
    ]
    for problem, found in data["similarity"].items():
        for method in dict.fromkeys(row["method"] for row in found):
            rows.append(
                _fit(
                    f"rounds against δ/L, {method}, {problem}", _BY_DELTA[method], _of(found, method), "delta", "rounds"
                )
            )
    limit = 1 / data["middle"]
    for method in dict.fromkeys(row["method"] for row in data["steps"]):
        below = [row for row in _of(data["steps"], method) if row["K"] <= limit * 1.01]
        above = [row for row in _of(data["steps"], method) if row["K"] >= limit * 0.99]
        rows.append(_fit(f"rounds against K up to L/δ, {method}", "−1 to 0", below, "K", "rounds"))
        rows.append(_fit(f"rounds against K beyond L/δ, {method}", "0", above, "K", "rounds"))
    for method in dict.fromkeys(row["method"] for row in data["cohort"]):
        theory = f"{'−1 to −½' if method == 'MimeMVR' else '0'} (bound)"
        rows.append(_fit(f"rounds against S, {method}", theory, _of(data["cohort"], method), "S", "rounds"))
    for method, theory in (("Mime", "−1"), ("MimeLite", "0")):
        rows.append(_fit(f"‖d − ∇f(y)‖² against S, {method}", theory, _of(data["errors"], method), "S", "error"))
    return [row for row in rows if row["fitted"] is not None]


def _of(rows: list[dict[str, Any]], method: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["method"] == method]


def _fit(what: str, theory: str, rows: list[dict[str, Any]], x: str, y: str) -> dict[str, Any]:
    known = [row for row in rows if row[y]]
    return _slope(what, theory, slope([r[x] for r in known], [r[y] for r in known]) if len(known) > 1 else None)


def _slope(what: str, theory: str, fitted: float | None) -> dict[str, Any]:
    return {"what": what, "theory": theory, "fitted": fitted}


def rounds_rows(similarity: dict[str, list[dict[str, Any]]]) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the table of rounds by δ/L, with MimeMVR's advantage over server-only MVR below each problem."""
    ratios = sorted({row["delta"] for rows in similarity.values() for row in rows}, reverse=True)
    table, advantage = [], {(row["problem"], row["delta"]): row["factor"] for row in factors(similarity)}
    for problem, rows in similarity.items():
        for method in dict.fromkeys(row["method"] for row in rows):
            rounds = {row["delta"]: row["rounds"] for row in _of(rows, method)}
            table.append([f"{method}, {problem}", *(_told(rounds.get(ratio)) for ratio in ratios)])
        gained = [advantage.get((problem, ratio)) for ratio in ratios]
        table.append([f"times fewer, {problem}", *("–" if one is None else f"{one:.1f}" for one in gained)])
    return ["rounds at δ/L", *(f"{ratio:g}" for ratio in ratios)], table


def _told(rounds: int | None) -> str:
    return "not there" if rounds is None else f"{rounds:,}"
