"""`reproduce sparsity`: whether momentum and Mime's correction destroy sparse gradients, and what helps there.

The paper's momentum methods are slower than SGD on Shakespeare and Stack Overflow. It explains that gradients there are
zero at tokens that a mini-batch does not hold, that momentum and the correction fill them in, and proposes Yogi; it
names AdaFactor and SM3 for communication. First densities are measured, then all these bases are compared.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from fedmime.experiments import accuracies, train
from fedmime.experiments import grid as grids
from fedmime.experiments.accuracies import ALGORITHMS, PUBLISHED, Column
from fedmime.experiments.reproduce_order import Order
from fedmime.experiments.setting import Optimizer, Setting, plain
from fedmime.experiments.sparsity_density import Draws, densities, untested
from fedmime.optimizers import momentum
from fedmime.runs import identity

_FORMAT = 1  # of what is kept on disk
BETA = 0.9
REAL = ("emnist-logistic", "emnist-cnn", "shakespeare", "stackoverflow-1000")
EMBEDDED = ("handwriting-logistic", "handwriting-mlp")
BASES = accuracies.BASES | {"Yogi": "yogi", "AdaFactor": "adafactor", "SM3": "sm3"}


class Scale(NamedTuple):
    """What is run at one scale."""

    marks: tuple[int, ...]  # rounds of Mime with momentum after which densities are measured
    cohort: int | None  # of these runs; by default the task's
    cohorts: int  # over which densities are means
    seeds: int  # of these runs
    columns: tuple[Column, ...]  # where bases are compared
    repeats: int  # seeds of the comparison


_RATES = tuple(grids.LIGHT["eta"])
_ALL = tuple(BASES)
SCALES = {
    "full": Scale((1, 100, 1000), None, 3, 3, tuple(Column(name, 1000, _RATES, _ALL) for name in PUBLISHED), 3),
    "small": Scale((1, 10), 10, 3, 3, tuple(Column(name, 30, _RATES[:5:2], _ALL) for name in PUBLISHED), 1),
    "smoke": Scale((2,), 5, 1, 1, (Column("logistic", 4, (1.0, 0.1), ("Yogi",)),), 1),
}


def run(order: Order) -> dict[str, Any]:
    """Measure the densities, put them on the page, then compare the bases, which takes longer."""
    scale = SCALES[order.scale]
    seeds, repeats = (range(order.seeds or each) for each in (scale.seeds, scale.repeats))
    facts = {"scale": order.scale, "beta": BETA, "marks": list(scale.marks), "cohorts": scale.cohorts}
    data: dict[str, Any] = {"setting": facts | {"seeds": len(seeds)}, "density": _densities(order, scale, seeds)}
    order.publish(data | {"remedies": []})
    return data | {"remedies": _remedies(order, scale, repeats)}


def _densities(order: Order, scale: Scale, seeds: range) -> list[dict[str, Any]]:
    names = EMBEDDED if order.data_dir is None else REAL
    if order.scale == "smoke":
        names = (order.task("logistic"),)
    asked = [(task, mark, seed) for task in names for mark in scale.marks for seed in seeds]
    return [_density(order, scale, *each) for each in asked]


def _density(order: Order, scale: Scale, task: str, mark: int, seed: int) -> dict[str, Any]:
    """What is measured after so many rounds of Mime with momentum at the task's rate."""
    optimizer = Optimizer(beta=BETA)
    asked = Setting(task, "mime", "momentum", rounds=mark, cohort=scale.cohort, seed=seed, optimizer=optimizer)
    prepared = train.prepare(dataclasses.replace(asked, drift=False), order.data_dir)
    population, s = prepared.population, prepared.setting
    draws = Draws(scale.cohorts, s.cohort or 1, s.batch or 1, seed)
    facts = {"sparsity": _FORMAT, "setting": plain(s), "cohorts": scale.cohorts, "data": identity.data(population)}

    def compute() -> dict[str, Any]:
        tick = order.counter(f"densities of {task} after {mark} rounds", draws.cohorts * draws.cohort)
        trained = train.run(dataclasses.replace(prepared, population=untested(population)), stop=order.stop)
        assert trained.state is not None
        m, base = trained.state.server.s.tree, momentum(BETA)
        found = densities(prepared.problem, population, trained.params, m, base, draws, tick)
        return {"loss": float(trained.history["loss"][-1]), "layers": found}

    told = {"task": task, "rounds": mark, "seed": seed, "cohort": s.cohort, "batch": s.batch, "eta": s.eta}
    return told | order.kept(facts, compute)


def _remedies(order: Order, scale: Scale, seeds: range) -> list[dict[str, Any]]:
    """MimeLite and Mime with every base at its best rate, with equal communication, on the tasks of sparse gradients.

    MimeLite with SGD tracks nothing: it is FedAvg. Without the published files there is no such task.
    """
    return [
        accuracies.measure(order, column, _asked(name, base), seeds) | {"base": base, "method": f"{name}{base}"}
        for column in scale.columns
        if column.name not in PUBLISHED or order.data_dir is not None
        for base in column.bases
        for name in ("MimeLite", "Mime")
    ]


def _asked(name: str, base: str) -> dict[str, Any]:
    paired = (name, base) != ("MimeLite", "SGD")
    return {"algorithm": ALGORITHMS[name], "base": BASES[base], "split": paired}
