"""Plausible run directories, written as a training run writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

SIZES = {"FedAvg": 2, "FedProx": 2, "SCAFFOLD": 4, "Mime": 6, "MimeLite": 5}
PACE = {"FedAvg": 0.030, "FedProx": 0.026, "SCAFFOLD": 0.034, "Mime": 0.085, "MimeLite": 0.078}
PARAMETERS = 272_000


def write_run(
    path: Path,
    method: str,
    rounds: int = 120,
    every: int = 5,
    seed: int = 0,
    without: tuple[str, ...] = (),
    **config: Any,
) -> Path:
    """One run of a method that learns at its pace; it did not measure what it is `without`."""
    path.mkdir(parents=True)
    draw = np.random.default_rng([seed, *method.encode()])
    pace, cost = PACE.get(method, 0.05), SIZES.get(method, 5) * PARAMETERS * 4 * 20
    rows = []
    for number in range(rounds):
        level = 0.84 * (1 - np.exp(-pace * (number + 1))) + 0.006 * draw.standard_normal()
        row = {
            "round": number,
            "primed": False,
            "abandoned": False,
            "clients": 20,
            "refused": 0,
            "steps": 280,
            "examples": 2731,
            "loss": 4.1 * float(np.exp(-pace * number)) + 0.5,
            "drift": 0.02 * float(np.exp(0.2 * draw.standard_normal())) * (0.3 if "Mime" in method else 1.0),
            "gradient_norm": 1.4 / (1 + pace * number) if "Mime" in method else None,
            "deviation": 0.3 / (1 + pace * number) if method == "Mime" else None,
            "update_norm": 0.5 / (1 + 0.5 * pace * number),
            "bytes_down": cost // 2,
            "bytes_up": cost // 2,
            "bytes_total": cost * (number + 1),
        }
        if (number + 1) % every == 0:
            row |= {"test_accuracy": float(level), "test_loss": 3.9 * (1 - float(level)) + 0.1}
            row |= {"client_accuracy_mean": float(level) - 0.01, "client_accuracy_worst_decile": float(level) - 0.21}
        rows.append({name: value for name, value in row.items() if name not in without})
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    times = ({"round": number, "seconds": round(0.32 * (number + 1), 3)} for number in range(rounds))
    (path / "timings.jsonl").write_text("".join(json.dumps(row) + "\n" for row in times))
    accuracy = np.clip(rows[-1].get("test_accuracy", 0.5) + 0.12 * draw.standard_normal(400), 0, 1)
    each = {"ids": [f"writer_{k}" for k in range(400)], "accuracy": accuracy.tolist(), "examples": [150] * 400}
    _json(path / "clients.json", {"round": rounds - 1, **each})
    asked = {
        "label": method,
        "task": "handwriting-mlp",
        "algorithm": method.lower(),
        "base": "momentum",
        "eta": 0.1 if method == "FedAvg" else 0.03,
        "eta_server": 1.0,
        "rounds": rounds,
        "cohort": 20,
        "batch": 10,
        "epochs": 10,
        "steps": None,
        "seed": seed,
        "optimizer": {"beta": 0.9},
        "participation": {"kind": "uniform", "dropout": 0.0},
        "target": 0.75,
    }
    (path / "config.yaml").write_text(yaml.safe_dump(asked | config, sort_keys=False))
    (path / "command.txt").write_text(f"fedmime train --task handwriting-mlp --algorithm {method.lower()} --eta 0.03\n")
    _json(
        path / "env.json",
        {
            "fedmime": "0.1.0",
            "python": "3.11.2",
            "jax": "0.10.2",
            "numpy": "2.4.6",
            "platform": "Linux x86_64",
            "devices": 2,
            "git": "e1065048c1",
            "time": f"2026-01-01T00:00:{list(SIZES).index(method) if method in SIZES else 9:02d}",
        },
    )
    found = {"name": "handwriting", "sha256": "9f" * 32, "clients": 3400, "examples": 670_112, "test_examples": 77_000}
    _json(path / "data.json", found)
    done = {"state": "done", "round": rounds - 1, "rounds": rounds, "reason": None, "seconds": 0.32 * rounds}
    _json(path / "status.json", done)
    return path


def change(path: Path, **fields: Any) -> None:
    """Change fields of a JSON file."""
    _json(path, json.loads(path.read_text()) | fields)


def change_rows(path: Path, changes: Mapping[int, Mapping[str, Any]]) -> None:
    """Change fields of some rounds in a run's history."""
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    for number, fields in changes.items():
        rows[number] |= fields
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def _json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value))
