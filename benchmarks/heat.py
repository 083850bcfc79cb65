"""A heat: entrants on one machine and one work, each waiting while another has its rounds."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases import APART, ONE_CORE, Case
from benchmarks.environments import Environment
from benchmarks.peer import Pair, Peer, PeerError, own_cores

Say = Callable[[str], None]
Weights = dict[str, np.ndarray]


class Heat:
    """Start-up one by one, the other cases prepared side by side, agreement checked, then rounds in turn."""

    def __init__(
        self, cases: Sequence[Case], model: str, work: Path, environments: dict[str, Environment], out: Path, say: Say
    ) -> None:
        self._cases, self._model, self._work, self._out, self._say = cases, model, work, out, say
        self._environments = environments
        self._peers: dict[str, Peer | Pair] = {}
        self._entrants: dict[str, dict[str, Any]] = {}
        self._results = {case.name: _blank(case) for case in cases}

    def run(self) -> dict[str, Any]:
        """What the entrants took to start, and every case's samples."""
        with contextlib.ExitStack() as stack:
            for name in dict.fromkeys(name for case in self._cases for name in case.entrants):
                self._start(name, stack)
            with ThreadPoolExecutor() as pool:
                list(pool.map(self._prepare_others, list(self._peers)))
            for case in self._cases:
                if len(case.entrants) > 1:
                    self._check(case)
            for turn in range(max(case.repeats for case in self._cases)):
                for case in self._cases:
                    if turn < case.repeats:
                        self._turn(case, backwards=bool(turn % 2))
        return {"entrants": self._entrants, "cases": self._results}

    def _start(self, name: str, stack: contextlib.ExitStack) -> None:
        """Launch an entrant and run one round of its first case: what a user waits for, and what it takes."""
        environment = self._environments.get(name)
        first = self._of(name)[0]
        if environment is not None and environment.python is None:
            self._entrants[name] = {"absent": environment.absent}
            for case in self._of(name):
                self._results[case.name]["results"][name] = {"absent": environment.absent}
            return
        python = environment.python if environment is not None else None
        log = self._out / "logs" / f"{self._model}-{name.replace(' ', '-')}.log"
        self._peers[name] = peer = stack.enter_context(self._launched(name, log, python))
        self._prepare(name, first)
        begun = self._results[first.name]["results"][name]
        self._entrants[name] = begun if "absent" in begun else {"startup": peer.age(), "memory": begun["memory"]}
        self._say(f"  {name}: {begun.get('absent') or f'ready after {peer.age():.1f} s'}")

    def _launched(self, name: str, log: Path, python: Path | None) -> Peer | Pair:
        cores = own_cores()
        if name == APART:
            logs = (log.with_stem(f"{log.stem}-{i}") for i in range(2))
            alone = (cores[:1], cores[-1:])
            return Pair(
                *(Peer("fedmime_", self._work, each, None, core) for each, core in zip(logs, alone, strict=True))
            )
        if name == ONE_CORE:
            return Peer("fedmime_", self._work, log, None, cores[:1])
        return Peer(f"{name}_", self._work, log, python)

    def _prepare_others(self, name: str) -> None:
        for case in self._of(name)[1:]:
            self._prepare(name, case)

    def _prepare(self, name: str, case: Case) -> None:
        with self._failing(name, case):
            answer = self._peers[name].ask(do="prepare", case=case.request(self._model))
            samples = {"wall": [], "cpu": [], "compiled": [], "first": answer["wall"], "memory": answer["memory"]}
            self._results[case.name]["results"][name] = samples

    def _check(self, case: Case) -> None:
        """One round of FedAvg, or two of momentum, from the same weights must give the same model everywhere."""
        reached: dict[str, Weights] = {}
        for name in self._running(case):
            target = self._out / "work" / "reached.npz"
            with self._failing(name, case):
                rounds = 1 if case.algorithm == "fedavg" else 2
                self._peers[name].ask(do="check", case=case.name, rounds=rounds, out=str(target))
                with np.load(target) as file:
                    reached[name] = dict(file)
        with np.load(self._work) as file:
            start = {name[5:]: file[name] for name in file.files if name.startswith("init/")}
        ours = reached.pop("fedmime", None)
        if ours is not None:
            agreement = {name: distance(ours, other, start) for name, other in reached.items()}
            self._results[case.name]["agreement"] = agreement

    def _turn(self, case: Case, backwards: bool) -> None:
        """A stretch of rounds of every entrant, in an order that changes from turn to turn."""
        running = self._running(case)
        for name in reversed(running) if backwards else running:
            with self._failing(name, case):
                answer = self._peers[name].ask(do="stretch", case=case.name, seconds=case.stretch)
                samples = self._results[case.name]["results"][name]
                for figure in ("wall", "cpu"):
                    samples[figure].append(answer[figure])
                samples["compiled"].append(answer["compiled"])
                samples["memory"] = answer["memory"]

    def _of(self, name: str) -> list[Case]:
        return [case for case in self._cases if name in case.entrants]

    def _running(self, case: Case) -> list[str]:
        results = self._results[case.name]["results"]
        return [name for name in case.entrants if "absent" not in results[name]]

    @contextlib.contextmanager
    def _failing(self, name: str, case: Case) -> Iterator[None]:
        """An entrant that fails a case is absent from it, with the reason; the others go on."""
        try:
            yield
        except PeerError as error:
            self._results[case.name]["results"][name] = {"absent": str(error)}
            self._say(f"  {name}, {case.name}: {error}")


def distance(a: Weights, b: Weights, start: Weights) -> dict[str, float]:
    """How far two models are apart: ‖a − b‖ / ‖a − start‖, and the largest entry of a − b."""
    apart, moved = (
        np.sqrt(sum(float(np.sum((a[k] - other[k]).astype(np.float64) ** 2)) for k in start)) for other in (b, start)
    )
    return {"relative": float(apart / max(moved, 1e-300)), "largest": max(float(np.abs(a[k] - b[k]).max()) for k in a)}


def _blank(case: Case) -> dict[str, Any]:
    described = {"algorithm": case.algorithm, "base": case.base, "epochs": case.epochs, "devices": case.devices}
    nobody = {name: {"absent": "not started"} for name in case.entrants}
    return {**described, "path": case.path, "stretch": case.stretch, "results": nobody}
