"""The peers section: entrants on identical work, interleaved round by round."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases import ONE_CORE, QUICK_MODELS, QUICK_WORK, RATES, Case, cases, flower_case
from benchmarks.environments import PEERS, Environment, ensure
from benchmarks.peer import Peer, PeerError, own_cores
from benchmarks.shapes import MODELS
from benchmarks.work import Work

Say = Callable[[str], None]


def run(out: Path, quick: bool, say: Say) -> dict[str, Any]:
    """Measure all models."""
    environments = {}
    for name in PEERS:
        environments[name] = ensure(name)
        say(_installed(environments[name]))
    models = {}
    for model in QUICK_MODELS if quick else MODELS:
        models[model] = compare(model, environments, out, quick, say)
    return {"environments": {name: e.facts() for name, e in environments.items()}, "models": models}


def compare(model: str, environments: dict[str, Environment], out: Path, quick: bool, say: Say) -> dict[str, Any]:
    """All cases of a model: first without Ray on the machine, then Flower."""
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


class Heat:
    """Entrants that run side by side, each waiting while another has its round."""

    def __init__(
        self,
        chosen: Sequence[Case],
        model: str,
        work: Path,
        environments: dict[str, Environment],
        out: Path,
        say: Say,
    ) -> None:
        self._cases, self._model, self._work, self._out, self._say = chosen, model, work, out, say
        self._environments = environments
        self._peers: dict[str, Peer] = {}
        self._entrants: dict[str, dict[str, Any]] = {}
        self._results = {case.name: _blank(case) for case in chosen}

    def run(self) -> dict[str, Any]:
        """Start the entrants one after another, prepare, check, then take turns."""
        with contextlib.ExitStack() as stack:
            for name in dict.fromkeys(name for case in self._cases for name in case.entrants):
                self._start(name, stack)
            for case in self._cases:
                self._check(case)
            for turn in range(max(case.repeats for case in self._cases)):
                for case in self._cases:
                    if turn < case.repeats:
                        self._turn(case)
        return {"entrants": self._entrants, "cases": self._results}

    def _start(self, name: str, stack: contextlib.ExitStack) -> None:
        environment = self._environments.get(name)
        if environment is not None and environment.python is None:
            self._entrants[name] = {"absent": environment.absent}
            return
        python = environment.python if environment is not None else None
        log = self._out / "logs" / f"{self._model}-{name.replace(' ', '-')}.log"
        script, cores = ("fedmime_", own_cores()[:1]) if name == ONE_CORE else (f"{name}_", None)
        peer = stack.enter_context(Peer(script, self._work, log, python, cores))
        self._peers[name] = peer
        first = True
        for case in self._cases:
            if name not in case.entrants or not self._prepare(name, case):
                continue
            if first:  # one round of the first case done: what a user waits for, and what it takes
                first = False
                self._say(f"  {name}: ready after {self._entrants[name]['startup']:.1f} s")

    def _prepare(self, name: str, case: Case) -> bool:
        peer, result = self._peers[name], self._results[case.name]
        try:
            answer = peer.ask(do="prepare", case=case.request(self._model))
        except PeerError as error:
            result["results"][name] = {"absent": str(error)}
            self._entrants.setdefault(name, {"absent": str(error)})
            self._say(f"  {name}, {case.name}: {error}")
            return False
        if self._entrants.get(name, {}).get("startup") is None:
            self._entrants[name] = {"startup": peer.age(), "memory": answer["memory"]}
        samples = {"wall": [], "cpu": [], "compiled": []}
        result["results"][name] = {**samples, "memory": answer["memory"], "first": answer["wall"]}
        return True

    def _check(self, case: Case) -> None:
        """Two rounds of momentum or one of FedAvg from the same weights must give the same model everywhere."""
        if len(case.entrants) == 1:
            return
        reached: dict[str, dict[str, np.ndarray]] = {}
        for name in self._running(case):
            target = self._out / "work" / "reached.npz"
            with self._failing(name, case):
                rounds = 1 if case.algorithm == "fedavg" else 2
                self._peers[name].ask(do="check", case=case.name, rounds=rounds, out=str(target))
                with np.load(target) as file:
                    reached[name] = dict(file)
        with np.load(self._work) as file:
            start = {name[5:]: file[name] for name in file.files if name.startswith("init/")}
        if "fedmime" in reached:
            agreement = {
                n: distance(reached["fedmime"], other, start) for n, other in reached.items() if n != "fedmime"
            }
            self._results[case.name]["agreement"] = agreement

    def _turn(self, case: Case) -> None:
        for name in self._running(case):
            with self._failing(name, case):
                answer = self._peers[name].ask(do="round", case=case.name)
                samples = self._results[case.name]["results"][name]
                for figure in ("wall", "cpu"):
                    samples[figure].append(answer[figure])
                samples["compiled"].append(answer.get("compiled", 0))
                samples["memory"] = answer["memory"]

    def _running(self, case: Case) -> list[str]:
        results = self._results[case.name]["results"]
        return [name for name in case.entrants if "absent" not in results.get(name, {"absent": ""})]

    @contextlib.contextmanager
    def _failing(self, name: str, case: Case) -> Any:
        try:
            yield
        except PeerError as error:
            self._results[case.name]["results"][name] = {"absent": str(error)}
            self._say(f"  {name}, {case.name}: {error}")


def distance(a: dict[str, np.ndarray], b: dict[str, np.ndarray], start: dict[str, np.ndarray]) -> dict[str, float]:
    """How far two models are apart: ‖a − b‖ / ‖a − start‖, and the largest entry of a − b."""
    apart = np.sqrt(sum(float(np.sum((a[k] - b[k]).astype(np.float64) ** 2)) for k in start))
    moved = np.sqrt(sum(float(np.sum((a[k] - start[k]).astype(np.float64) ** 2)) for k in start))
    return {"relative": float(apart / max(moved, 1e-300)), "largest": max(float(np.abs(a[k] - b[k]).max()) for k in a)}


def _blank(case: Case) -> dict[str, Any]:
    described = {"algorithm": case.algorithm, "base": case.base, "epochs": case.epochs, "devices": case.devices}
    return {**described, "path": case.path, "results": {}}


def _installed(environment: Environment) -> str:
    if environment.python is None:
        return f"{environment.peer}: absent, {environment.absent}"
    took = f", installed in {environment.seconds:.0f} s" if environment.seconds else ""
    return f"{environment.peer}: {environment.versions}{took}"
