"""The scaling section: clients per round, population, epochs and devices, each run in a fresh process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.peer import PeerError
from benchmarks.probe import probe

STACKOVERFLOW = 342_477
BASE = {
    "model": "logistic",
    "mime": False,
    "clients": 20,
    "population": 2000,
    "epochs": 1,
    "devices": None,
    "rounds": 7,
}

CLIENTS, QUICK_CLIENTS = (10, 30, 100, 300, 1000), (10, 300)
POPULATIONS, QUICK_POPULATIONS = (200, 2000, 20_000, STACKOVERFLOW), (2000, STACKOVERFLOW)
EPOCHS, QUICK_EPOCHS = (1, 5, 10), (10,)


def run(out: Path, quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure every setting; a row says what was varied."""
    rows = []
    for group, changed in settings(quick):
        asked = {**BASE, **changed}
        say(f"{group}: {', '.join(f'{name} {value}' for name, value in changed.items())}")
        try:
            found = probe("scale", asked)
        except PeerError as error:
            found = {"absent": str(error)}
        rows.append({"group": group, **asked, **found})
    return {"rows": rows}


def settings(quick: bool) -> list[tuple[str, dict[str, Any]]]:
    """What is varied, group by group."""
    long = {"rounds": 5 if quick else 7}
    return [
        *(("clients per round", {"clients": n, **long}) for n in (QUICK_CLIENTS if quick else CLIENTS)),
        *(("population", {"population": n}) for n in (QUICK_POPULATIONS if quick else POPULATIONS)),
        *(("epochs", {"model": "mlp", "epochs": n, **long}) for n in (QUICK_EPOCHS if quick else EPOCHS)),
        *(
            ("devices", {"model": "mlp", "mime": mime, "devices": n})
            for mime in ((False,) if quick else (False, True))
            for n in (1, 2)
        ),
    ]


def memory(section: dict[str, Any], group: str, field: str, setting: int) -> float | None:
    """Peak bytes of a row."""
    for row in section.get("rows", []):
        if row["group"] == group and row[field] == setting and "memory" in row:
            return row["memory"]
    return None
