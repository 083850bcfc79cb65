"""The peers section: entrants on identical work, model by model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.cases import QUICK_MODELS, QUICK_WORK, RATES, cases, flower_case
from benchmarks.environments import PEERS, Environment, ensure
from benchmarks.heat import Heat, Say
from benchmarks.shapes import MODELS
from benchmarks.work import Work


def run(
    out: Path, quick: bool, say: Say, chosen: list[str] | None = None, before: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Set the peers up and measure the models chosen; the others keep what was measured before."""
    environments = {}
    for name in PEERS:
        environments[name] = ensure(name)
        say(_installed(environments[name]))
    models = dict(before["models"]) if chosen and before else {}
    for model in chosen or (QUICK_MODELS if quick else MODELS):
        models[model] = compare(model, environments, out, quick, say)
    return {"environments": {name: e.facts() for name, e in environments.items()}, "models": models}


def compare(model: str, environments: dict[str, Environment], out: Path, quick: bool, say: Say) -> dict[str, Any]:
    """All cases of a model: first without Ray on the machine, then beside Flower."""
    work = Work(model, **QUICK_WORK.get(model, {}) if quick else {})
    path = work.write(out / "work" / f"{model}.npz")
    facts = {"clients": work.clients, "examples": int(work.sizes().sum()), "steps": work.steps(), "eta": RATES[model]}
    say(f"{model}: {work.clients} clients, {facts['examples']} examples, {facts['steps']} local steps")
    heats = [cases(model, quick)]
    if (flower := flower_case(model, quick)) is not None:
        heats.append([flower])
    result: dict[str, Any] = {"work": facts, "entrants": {}, "cases": {}}
    for heat in heats:
        measured = Heat(heat, model, path, environments, out, say).run()
        for name, entrant in measured["entrants"].items():
            result["entrants"].setdefault(name, entrant)
        result["cases"] |= measured["cases"]
    return result


def _installed(environment: Environment) -> str:
    if environment.python is None:
        return f"{environment.peer}: absent, {environment.absent}"
    took = f", installed in {environment.seconds:.0f} s" if environment.seconds else ""
    return f"{environment.peer}: {environment.versions}{took}"
