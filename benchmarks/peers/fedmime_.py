"""fedmime through its public API: `run_round` on the given mini-batches, or `simulate` drawing its own."""

from typing import Any

import jax
import jax.monitoring
import numpy as np
from protocol import Case, serve
from work_file import WorkFile

import fedmime as fm
from fedmime.runs.run import nested

_compiled = [0]


def _count(name: str, seconds: float, **_: Any) -> None:
    _compiled[0] += name.endswith("backend_compile_duration")


jax.monitoring.register_event_duration_secs_listener(_count)

PROBLEMS = {
    "logistic": fm.models.logistic,
    "mlp": fm.models.mlp,
    "cnn": lambda: fm.models.cnn(dropout=0.0),
    "char_lstm": lambda: fm.models.char_lstm(layers=2),
}


class Rounds:
    """`fm.run_round`, one round after another on the same cohort."""

    def __init__(self, work: WorkFile, case: Case) -> None:
        self._algorithm, self._problem = algorithm(case), PROBLEMS[work.model]()
        self._initial, self._devices = nested(work.initial, "/"), case.get("devices")
        self._cohort = cohort(work, case["epochs"])
        self.reset()

    def round(self) -> dict[str, Any]:
        before = _compiled[0]
        self._state, _ = fm.run_round(self._algorithm, self._problem, self._state, self._cohort, devices=self._devices)
        return {"compiled": _compiled[0] - before}

    def wait(self) -> None:
        jax.block_until_ready(fm.params(self._state))

    def reset(self) -> None:
        self._state = self._algorithm.init(self._initial)

    def weights(self) -> dict[str, np.ndarray]:
        return flat(fm.params(self._state))


class Simulation:
    """`fm.simulate`, several rounds a call: cohorts, shuffling and assembly included."""

    def __init__(self, work: WorkFile, case: Case) -> None:
        self._algorithm, self._problem = algorithm(case), PROBLEMS[work.model]()
        self._population = fm.data.from_arrays({f"client {i}": dict(c) for i, c in enumerate(work.clients)})
        self._initial, self._clients = nested(work.initial, "/"), len(work.clients)
        self._epochs, self._batch, self._rounds = case["epochs"], work.batch, case.get("rounds", 1)
        self._devices = case.get("devices")
        self.reset()

    def round(self) -> dict[str, Any]:
        before = _compiled[0]
        run = fm.simulate(
            self._algorithm,
            self._problem,
            self._population,
            rounds=self._rounds,
            cohort_size=self._clients,
            batch_size=self._batch,
            epochs=self._epochs,
            initial=self._params,
            devices=self._devices,
        )
        self._params = run.params
        return {"compiled": _compiled[0] - before, "rounds": self._rounds}

    def wait(self) -> None:
        jax.block_until_ready(self._params)

    def reset(self) -> None:
        self._params = self._initial

    def weights(self) -> dict[str, np.ndarray]:
        return flat(self._params)


def algorithm(case: Case) -> Any:
    """The algorithm of a case."""
    eta = case["eta"]
    if case["algorithm"] == "fedavg":
        return fm.algorithms.fedavg(eta=eta)
    base = fm.optimizers.momentum(beta=case["beta"]) if case["base"] == "momentum" else fm.optimizers.sgd()
    return {"mime": fm.algorithms.mime, "mime_lite": fm.algorithms.mime_lite}[case["algorithm"]](base, eta=eta)


def cohort(work: WorkFile, epochs: int) -> fm.Cohort:
    """The given mini-batches; a short one is filled up with rows that the mask leaves out."""
    batches, masks = [], []
    for i, client in enumerate(work.clients):
        positions = work.batches(i, epochs)
        masks.append(np.stack([np.arange(work.batch) < len(p) for p in positions]))
        table = np.stack([np.resize(p, work.batch) for p in positions])
        batches.append({name: column[table] for name, column in client.items()})
    full = None if epochs == 1 else work.clients
    return fm.Cohort.from_batches(batches, masks, weights=work.sizes, full=full)


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, np.ndarray]:
    """The inverse of `nested`."""
    parts = (flat(v, f"{prefix}{k}/") if isinstance(v, dict) else {prefix + k: np.asarray(v)} for k, v in tree.items())
    return {name: value for part in parts for name, value in part.items()}


def build(work: WorkFile, case: Case) -> Rounds | Simulation:
    """The case as a runner."""
    return (Simulation if case.get("path") == "simulate" else Rounds)(work, case)


if __name__ == "__main__":
    serve(build)
