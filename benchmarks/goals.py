"""The goals at the end of PERFORMANCE.md, held against what was measured."""

from __future__ import annotations

from typing import Any, NamedTuple

from benchmarks.cases import APART, ONE_CORE, SHORT_ROUNDS, SIMULATED
from benchmarks.figures import ratio, recompiled, value
from benchmarks.scaling import STACKOVERFLOW, memory

Sections = dict[str, Any]
Figures = dict[str, float | None]

FASTER = {"logistic": 3.0, "mlp": 3.0, "cnn": 1.3, "char_lstm": 1.0}
MIME_FASTER = 3.0
MIME_COST = dict.fromkeys(FASTER, 2.2)
MIME_COST_10 = {"logistic": 1.6, "mlp": 1.6, "cnn": 1.6}
SECOND_CORE = 1.7
FLAT = 1.3
RAY_WALL, RAY_CPU = 1.3, 1.2
SWEEP_WALL = 0.6
SWEPT = ("handwriting-logistic", "handwriting-mlp")


class Goal(NamedTuple):
    """A limit and the figures that must keep it, by unit: CPU seconds, wall, or a plain number."""

    name: str
    figures: Figures
    limit: float
    at_least: bool = True
    beside: float | None = None  # what two processes that have nothing to do with each other reach

    @property
    def verdict(self) -> str:
        known = {unit: figure for unit, figure in self.figures.items() if figure is not None}
        if not known:
            return "not measured"
        failed = [u for u, f in known.items() if not (f >= self.limit if self.at_least else f <= self.limit)]
        if not failed:
            return "reached"
        return "missed" if len(failed) == len(known) else f"missed in {failed[0]}"

    def facts(self) -> dict[str, Any]:
        return {**self._asdict(), "verdict": self.verdict}


def run(sections: Sections) -> dict[str, Any]:
    """All goals with their verdicts."""
    goals = [goal.facts() for goal in evaluate(sections)]
    return {"goals": goals, "reached": sum(g["verdict"] == "reached" for g in goals)}


def evaluate(sections: Sections) -> list[Goal]:
    """Every goal, measured or not."""
    peers, scaling = sections.get("peers", {}), sections.get("scaling", {})
    measured = [*_against_peers(peers), *_against_fedavg(peers), *_second_core(peers), *_steady(peers, scaling)]
    swept = [*_sweeps(sections.get("sweep", {})), _processes(sections.get("workers", {}))]
    return [*measured, *swept, *_ray(sections.get("cluster", {}))]


def _against_peers(peers: Sections) -> list[Goal]:
    fedavg = [
        Goal(f"FedAvg on {model}: times faster than {peer}", _times(peers, model, "FedAvg", peer), factor)
        for model, factor in FASTER.items()
        for peer in ("pytorch", "fedjax")
    ]
    mime = [
        Goal(f"Mime on {model}: times faster than fedjax", _times(peers, model, "Mime", "fedjax"), MIME_FASTER)
        for model in FASTER
    ]
    return fedavg + mime


def _against_fedavg(peers: Sections) -> list[Goal]:
    once = [
        Goal(f"Mime on {model}, E=1: times our FedAvg", _cost(peers, model, "Mime", "FedAvg"), limit, False)
        for model, limit in MIME_COST.items()
    ]
    ten = [
        Goal(
            f"Mime on {model}, E=10: times our FedAvg", _cost(peers, model, "Mime, E=10", "FedAvg, E=10"), limit, False
        )
        for model, limit in MIME_COST_10.items()
    ]
    return once + ten


def _second_core(peers: Sections) -> list[Goal]:
    """In single rounds, and over several, where the next cohort is laid out while one computes.

    Cores that share something slow each other down whoever uses them: two processes on a core each show by how much.
    """
    goals = []
    for model, case in [*((model, "FedAvg") for model in FASTER), *((model, SIMULATED.name) for model in SHORT_ROUNDS)]:
        names = (ONE_CORE, "fedmime", APART)
        one, two, apart = (value(peers, model, case, entrant, "wall") for entrant in names)
        where = model if case == "FedAvg" else f"{model}, simulate"
        beside = None if one is None else ratio(2 * one, apart)
        times = {"wall": ratio(one, two)}
        goals.append(Goal(f"second core on {where}: times faster", times, SECOND_CORE, beside=beside))
    return goals


def _steady(peers: Sections, scaling: Sections) -> list[Goal]:
    most, some = (memory(scaling, "population", "population", n) for n in (STACKOVERFLOW, 2000))
    cohorts = [row["recompiled"] for row in scaling.get("rows", []) if "recompiled" in row]
    again, drawn = {"number": recompiled(peers)}, {"number": max(cohorts, default=None)}
    return [
        Goal("programs compiled after the first round, same cohort", again, 0, False),
        Goal("programs compiled after round 2, random cohorts", drawn, 0, False),
        Goal(f"peak memory of {STACKOVERFLOW:,} clients over 2,000", {"number": ratio(most, some)}, FLAT, False),
    ]


def _sweeps(section: Sections) -> list[Goal]:
    goals = []
    for task in SWEPT:
        row: Sections = next((row for row in section.get("rows", []) if row["task"] == task), {})
        share = ratio(row.get("near"), len(row["lost"])) if row else None
        goals += [
            Goal(f"nine rates on {task}: single runs", {"cpu": row.get("whole")}, 9.2, False),
            Goal(f"nine rates on {task}, halving: single runs", {"cpu": row.get("halved")}, 4.0, False),
            Goal(f"nine rates on {task}, halving: share of seeds near the best", {"number": share}, 0.9),
        ]
    return goals


def _processes(section: Sections) -> Goal:
    name = "nine rates on handwriting-mlp in two processes: times one"
    return Goal(name, {"wall": section.get("ratio")}, SWEEP_WALL, False)


def _ray(section: Sections) -> list[Goal]:
    """Two workers of Ray on the cores of `local`; nothing may be compiled after the second round, anywhere."""
    goals = []
    for row in section.get("rounds", []):
        name, ray, local = f"{row['algorithm']} on {row['task']}, Ray", row["ray"], row["local"]
        goals.append(Goal(f"{name}: times local", {"wall": ratio(ray["wall"], local["wall"])}, RAY_WALL, False))
        if row["algorithm"] == "Mime":
            goals.append(Goal(f"{name}: times local", {"cpu": ratio(ray["cpu"], local["cpu"])}, RAY_CPU, False))
        goals.append(Goal(f"{name}: programs compiled after round 2", {"number": ray["compiled"]}, 0, False))
    return goals


def _times(peers: Sections, model: str, case: str, peer: str) -> Figures:
    def figure(unit: str) -> float | None:
        return ratio(value(peers, model, case, peer, unit), value(peers, model, case, "fedmime", unit))

    return {unit: figure(unit) for unit in ("cpu", "wall")}


def _cost(peers: Sections, model: str, case: str, base: str) -> Figures:
    def figure(unit: str) -> float | None:
        return ratio(value(peers, model, case, "fedmime", unit), value(peers, model, base, "fedmime", unit))

    return {unit: figure(unit) for unit in ("cpu", "wall")}
