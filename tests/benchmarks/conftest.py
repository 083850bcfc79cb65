"""Benchmarks are not installed: their tests find them beside the tests."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))


def samples(cpu: float, wall: float, compiled: int = 0) -> dict:
    return {
        "cpu": [cpu, cpu, 9 * cpu],
        "wall": [wall, wall, 9 * wall],
        "compiled": [compiled, 0, 0],
        "memory": 5e8,
    }


@pytest.fixture
def results() -> dict:
    """A run on two models, small enough to check by hand."""
    agreement = {"pytorch": {"relative": 1e-6, "largest": 2e-8}}
    case = {"algorithm": "fedavg", "base": "momentum", "epochs": 1, "devices": None, "path": "round"}

    def model(**ours: float) -> dict:
        fedavg = {"fedmime": samples(0.1, 0.05), "pytorch": samples(0.35, 0.35), "fedjax": samples(0.16, 0.16)}
        fedavg |= {"fedmime on one core": samples(0.1, 0.09), "two of these at once": samples(0.1, 0.12)}
        fedavg |= {"pfl": {"absent": "no wheel"}}
        mime = {"fedmime": samples(ours["mime"], 0.09), "fedjax": samples(0.5, 0.6)}
        return {
            "work": {"clients": 20, "examples": 3518, "steps": 361, "eta": 0.01},
            "entrants": {"fedmime": {"startup": 2.0, "memory": 4e8}, "pfl": {"absent": "no wheel"}},
            "cases": {
                "FedAvg": {**case, "results": fedavg, "agreement": agreement},
                "Mime": {**case, "results": mime},
            },
        }

    rows = [
        {"group": "population", "population": n, "memory": m, "recompiled": 0, "wall": 0.1, "cpu": 0.2, "first": 1.0}
        for n, m in ((2000, 4e8), (342_477, 5e8))
    ]
    common = {"model": "logistic", "mime": False, "clients": 20, "epochs": 1, "devices": None}
    return {
        "format": 1,
        "machine": {"cores": 2},
        "peers": {
            "environments": {"pfl": {"versions": "pfl 0.6.0"}},
            "models": {"mlp": model(mime=0.2), "cnn": model(mime=0.3)},
        },
        "scaling": {"rows": [{**common, **row} for row in rows]},
        "data": {"rows": [{"name": "open_ms", "value": 3.2, "remark": "target < 50: met"}]},
        "roofline": {
            "peak": 1e11,
            "bandwidth": 1e10,
            "together": [9e10, 9e10],
            "models": {"mlp": ROW, "cnn": {"absent": "it | died"}},
        },
    }


ROW = {
    "flops": 10**7,
    "bytes": 10**6,
    "step": 3e-4,
    "ideal": 1e-4,
    "products": 2e-4,
    "update": 5e-5,
    "of_peak": 1 / 3,
    "of_limit": 2.5 / 3,
    "bound": "matrix products at these shapes",
    "overhead": 0.004,
}
