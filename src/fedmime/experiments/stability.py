"""`reproduce stability`: the best accuracy over client rates, for every server rate and ε."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

from fedmime.experiments import grid as grids
from fedmime.experiments.accuracies import ALGORITHMS, BASES
from fedmime.experiments.grid import Grid
from fedmime.experiments.reproduce_order import Order
from fedmime.experiments.setting import Optimizer, Setting
from fedmime.experiments.sweep_files import best_by

ADAPTIVE, PLAIN = ("Adam", "Adagrad"), ("SGD", "Mom")


class Scale(NamedTuple):
    """What is run at one scale."""

    model: str
    rounds: int
    cohort: int
    grid: Grid
    algorithms: tuple[str, ...]
    adaptive: tuple[str, ...]
    plain: tuple[str, ...]
    seeds: int


def _grid(eta: tuple[float, ...], server: tuple[float, ...], eps: tuple[float, ...]) -> Grid:
    return {"eta": eta, "eta_server": server, "optimizer.eps": eps}


_ALL = tuple(ALGORITHMS)
SCALES = {
    "full": Scale("cnn", 1000, 20, grids.HEAVY, _ALL, ADAPTIVE, PLAIN, 3),
    "small": Scale(
        "logistic", 40, 20,
        _grid((1.0, 0.1, 0.01, 1e-3, 1e-4), (10.0, 1.0, 0.1, 0.01, 1e-3), (1.0, 1e-2, 1e-4, 1e-7)),
        _ALL, ADAPTIVE, PLAIN, 3,
    ),
    "smoke": Scale(
        "logistic", 2, 5, _grid((1.0, 0.01), (1.0, 0.1), (1e-3, 1e-7)), ("FedAvg", "Mime"), ("Adam",), (), 2
    ),
}  # fmt: skip


def run(order: Order) -> dict[str, Any]:
    """Sweep every method over the whole grid with every seed; no point is given up, as every cell is shown."""
    scale = SCALES[order.scale]
    seeds = range(scale.seeds if order.seeds is None else order.seeds)
    maps, lines = [], []
    for short in (*scale.adaptive, *scale.plain):
        for name in scale.algorithms:
            grid = scale.grid
            if short in PLAIN:
                grid = {axis: values for axis, values in grid.items() if axis != "optimizer.eps"}
            setting = _setting(order, scale, name, short)
            swept = [order.sweep(dataclasses.replace(setting, seed=seed), grid) for seed in seeds]
            found = {"method": f"{name}{short}", "server": list(grid["eta_server"])}
            if short in PLAIN:
                by_seed = [[_highest(row) for row in best_by(each, "eta_server", "eta").tolist()] for each in swept]
                lines.append(found | {"accuracy": by_seed})
            else:
                by_seed = [best_by(each, "eta_server", "optimizer.eps").tolist() for each in swept]
                cells = [[[_known(value) for value in row] for row in cells] for cells in by_seed]
                maps.append(found | {"eps": list(grid["optimizer.eps"]), "accuracy": cells})
    facts = {"scale": order.scale, "task": order.task(scale.model), "rounds": scale.rounds, "cohort": scale.cohort}
    facts |= {"rates": list(scale.grid["eta"]), "seeds": len(seeds)}
    return {"setting": facts, "maps": maps, "lines": lines}


def _setting(order: Order, scale: Scale, name: str, short: str) -> Setting:
    optimizer = Optimizer(beta=0.9) if short == "Mom" else Optimizer()
    return Setting(
        task=order.task(scale.model),
        algorithm=ALGORITHMS[name],  # pyright: ignore[reportArgumentType]
        base=BASES[short],  # pyright: ignore[reportArgumentType]
        rounds=scale.rounds,
        cohort=scale.cohort,
        epochs=1,
        optimizer=optimizer,
    )


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _highest(row: list[float]) -> float | None:
    return max((value for value in row if not math.isnan(value)), default=None)
