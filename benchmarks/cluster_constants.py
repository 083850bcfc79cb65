"""The constants of `cluster_model.py`, measured on this machine.

Costs of clients are CPU seconds of `local` while all cores are busy, so they are those of a core among busy ones. They
are differences between two runs that differ in one thing, so what the runs share does not count. What a round and a
phase cost beside is wall time, which is only true of a machine that has nothing else to do: the load is noted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.cluster_model import BATCH, BYTES, FEDAVG, MIME, Constants, Model, line
from benchmarks.probe import probe

Say = Callable[[str], None]
Run = dict[str, Any]

SIZES, QUICK_SIZES = (0.2e6, 2e6, 20e6, 100e6, 400e6), (0.2e6, 2e6, 20e6)  # bytes in the object store
DENSE = {50: (50, 450), 250: (50, 450), 750: (50, 250), 2750: (20, 100), 9600: (10, 30)}
"""Widths of perceptrons from 0.045 to 100 million parameters, each with two numbers of examples a client."""
NAMED = {"handwriting-mlp": (50, 450), "emnist-cnn": (20, 100), "char_lstm": (20, 60)}
QUICK_DENSE, QUICK_NAMED = (50, 250, 750), ("handwriting-mlp",)
SERVER, QUICK_SERVER = (50, 750, 2750), (50, 750)  # widths whose server steps are timed
FEW, MANY = 20, 420  # clients of an empty round
ROUNDS, EMPTY_ROUNDS = 6, 40


def measure(quick: bool, say: Say) -> dict[str, Any]:
    """Everything that the model needs, as plain numbers."""
    say("object store: calls, and parameters there and back")
    store = probe("store", {"sizes": QUICK_SIZES if quick else SIZES})
    say("rounds in which there is nothing to compute")
    constants = _overheads() | {
        stage: _line(store["near"], stage)[1] for stage in ("put", "get", "give", "fetch", "add")
    }
    constants["server"] = _server(QUICK_SERVER if quick else SERVER)
    models = []
    for name, examples in _models(quick).items():
        say(f"{name}: local steps and full gradients")
        models.append(_model(name, examples))
    return {"constants": constants, "models": models, "store": store, "link": _link(store)}


def constants_of(section: dict[str, Any]) -> Constants:
    """The constants of results that were saved."""
    return Constants(**section["constants"])


def models_of(section: dict[str, Any]) -> list[Model]:
    """The models of results that were saved."""
    return [Model(**model) for model in section["models"]]


def _models(quick: bool) -> dict[str, tuple[int, int]]:
    dense = {f"dense-{width}": pair for width, pair in DENSE.items() if not quick or width in QUICK_DENSE}
    return dense | {name: pair for name, pair in NAMED.items() if not quick or name in QUICK_NAMED}


def _model(name: str, examples: tuple[int, int]) -> dict[str, Any]:
    """Seconds of a local step and of an example, from clients of two sizes, one for each core."""
    asked = {"model": name, "backend": "local", "clients": 2, "rounds": ROUNDS, "data_dir": None}
    algorithms = ("fedavg", "mime", "server_only")
    runs = probe(
        "rounds",
        {"runs": [asked | {"algorithm": a, "examples": n} for a in algorithms for n in examples]},
        timeout=3600,
    )
    more = {a: runs[2 * i + 1]["cpu"] - runs[2 * i]["cpu"] for i, a in enumerate(algorithms)}
    fewer, all_ = runs[:2]
    step = more["fedavg"] / (all_["steps"] - fewer["steps"])
    example = more["server_only"] / (all_["examples"] - fewer["examples"])
    mime = more["mime"] / (all_["steps"] - fewer["steps"]) - BATCH * example
    return {
        "name": name,
        "parameters": fewer["bytes"] / BYTES,
        "steps": {FEDAVG.name: step, MIME.name: mime},
        "example": example,
    }


def _overheads() -> dict[str, float]:
    """What rounds cost beside steps and parameters, from rounds of a tiny model in which a client takes one step."""
    tiny = {"model": "tiny", "examples": BATCH, "rounds": EMPTY_ROUNDS, "algorithm": "fedavg", "data_dir": None}

    def runs(backend: str, workers: int, *settings: dict[str, Any]) -> list[Run]:
        asked = tiny | {"backend": backend, "workers": workers}
        return probe("rounds", {"runs": [asked | setting for setting in settings]})

    few, many = runs("local", 1, {"clients": FEW}, {"clients": MANY})
    local_client = (many["cpu"] - few["cpu"]) / (MANY - FEW)
    once, twice = runs("ray", 1, {"clients": FEW}, {"clients": FEW, "algorithm": "mime"})
    (four,) = runs("ray", 4, {"clients": FEW})
    two, crowd = runs("ray", 2, {"clients": FEW}, {"clients": MANY})
    client = (crowd["driver"] - two["driver"]) / (MANY - FEW)
    worker_client = (crowd["cpu"] - two["cpu"]) / (MANY - FEW) - client
    call = max(four["driver"] - once["driver"], 0.0) / 3
    trip = twice["wall"] - once["wall"] - call
    return {
        "local_round": few["wall"] - FEW * local_client,
        "local_client": local_client,
        "round": once["wall"] - trip - call - FEW * (client + worker_client),
        "trip": trip,
        "call": call,
        "client": client,
        "worker_client": worker_client,
    }


def _server(widths: tuple[int, ...]) -> float:
    """Seconds of the server's step for each parameter, from rounds whose clients cost nothing."""
    asked = {"backend": "repeating", "algorithm": "mime", "clients": 2, "examples": BATCH, "rounds": ROUNDS}
    runs = probe("rounds", {"runs": [asked | {"model": f"dense-{width}", "data_dir": None} for width in widths]})
    return line([run["bytes"] / BYTES for run in runs], [run["wall"] for run in runs])[1]


def _link(store: dict[str, Any]) -> dict[str, float]:
    """What one more node adds, through the loopback interface: seconds, and bytes a second."""
    latency, each = _line(store["far"], "take")
    near_latency, near = _line(store["near"], "get")
    return {"latency": max(latency - near_latency, 0.0), "bandwidth": 1 / max(each - near, 1e-12)}


def _line(rows: list[dict[str, float]], stage: str) -> tuple[float, float]:
    return line([row["size"] for row in rows], [row[stage] for row in rows])
