"""From names and numbers to the objects that run: optimizers, algorithms, what they are called."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable
from typing import Any

from fedmime import algorithms, optimizers
from fedmime.algorithms import Algorithm
from fedmime.errors import ConfigError
from fedmime.experiments import messages
from fedmime.experiments.setting import ALGORITHMS, BASES, TRACKING, Optimizer, Setting
from fedmime.experiments.tasks import Task
from fedmime.optimizers import BaseOptimizer
from fedmime.validation import CLOSED_UNIT, LARGEST_SEED, POSITIVE, choice, count, real

# Rates of adaptive optimizers are in units of weights, not of gradients: a fraction of what suits SGD.
_RATES = {"adagrad": 0.3, "adam": 0.03, "rmsprop": 0.03, "yogi": 0.03, "adafactor": 0.03, "sm3": 0.3}
_NAMES = {
    "mime": "Mime",
    "mime_lite": "MimeLite",
    "mime_mvr": "MimeMVR",
    "mime_lite_mvr": "MimeLiteMVR",
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "scaffold": "SCAFFOLD",
    "feddyn": "FedDyn",
    "server_only": "Server-only ",
    "server_only_mvr": "Server-only MVR",
    "centralized": "Centralized ",
}
_SHORT = {"sgd": "SGD", "momentum": "Mom", "adagrad": "Adagrad", "adam": "Adam", "rmsprop": "RMSProp", "yogi": "Yogi"}


def resolved(setting: Setting, task: Task) -> Setting:
    """The setting with the task's defaults filled in, every number checked."""
    choice("setting", "algorithm", setting.algorithm, ALGORITHMS)
    base = setting.base or setting.server.optimizer or ("momentum" if setting.algorithm in TRACKING else "sgd")
    choice("setting", "base", base, BASES)
    choice("setting", "decay", setting.decay, ("constant", "cosine", "linear"))
    server = base if setting.server.optimizer is None else setting.server.optimizer
    choice("setting", "server.optimizer", server, BASES)
    rate = task.eta * (_RATES.get(base, 1.0) if setting.algorithm in TRACKING else 1.0)
    epochs = setting.epochs if setting.epochs is not None or setting.steps is not None else task.epochs
    full = dataclasses.replace(
        setting,
        base=base,
        eta=rate if setting.eta is None else setting.eta,
        rounds=task.rounds if setting.rounds is None else setting.rounds,
        cohort=task.cohort if setting.cohort is None else setting.cohort,
        batch=task.batch_size if setting.batch is None else setting.batch,
        epochs=epochs,
        target=task.target if setting.target is None and setting.target_gap is None else setting.target,
        target_gap=task.target_gap if setting.target is None and setting.target_gap is None else setting.target_gap,
        optimum=task.optimum if setting.optimum is None else setting.optimum,
        server=dataclasses.replace(setting.server, optimizer=server),
    )
    for name in ("rounds", "cohort", "batch", "evaluate_every"):
        count("setting", name, getattr(full, name), least=1)
    for name, least in (("epochs", 1), ("steps", 1), ("clients_every", 0)):
        if getattr(full, name) is not None:
            count("setting", name, getattr(full, name), least)
    count("setting", "seed", full.seed, most=LARGEST_SEED)
    real("setting", "eta", full.eta, POSITIVE)
    if full.target is not None:
        real("setting", "target", full.target, CLOSED_UNIT)
    _check_target(full)
    return full


def _check_target(setting: Setting) -> None:
    """A target is an accuracy, or a distance from an optimum that is known."""
    if setting.target_gap is None:
        return
    real("setting", "target_gap", setting.target_gap, POSITIVE)
    if setting.target is not None:
        told = f"target={setting.target!r}, target_gap={setting.target_gap!r}"
        raise ConfigError(f"setting: give an accuracy as target or a target_gap, not both, got {told}")
    if setting.optimum is None:
        raise ConfigError(f"setting: target_gap={setting.target_gap!r} needs the optimum of the training loss")


def optimizer(name: str, numbers: Optimizer) -> BaseOptimizer:
    """The optimizer of a name; numbers it does not have are ignored where they are the default, else refused."""
    make = getattr(optimizers, name)
    takes = inspect.signature(make).parameters
    given = {key: value for key, value in dataclasses.asdict(numbers).items() if value is not None}
    if foreign := [key for key in given if key not in takes and key != "beta"]:
        own = ", ".join(takes) or "none"
        raise ConfigError(f"setting: optimizer.{foreign[0]} is no number of {name}; it has {own}")
    return make(**{key: value for key, value in given.items() if key in takes})


def algorithm(setting: Setting) -> Algorithm:
    """The algorithm of a resolved setting."""
    s = setting
    make: Callable[..., Any] = getattr(algorithms, s.algorithm)
    assert s.base is not None
    assert s.server.optimizer is not None
    beta = 0.9 if s.optimizer.beta is None else s.optimizer.beta
    offered = {
        "base": lambda: optimizer(s.base or "", s.optimizer),
        "server": lambda: optimizer(s.server.optimizer or "", s.optimizer),
        "eta": lambda: rate(s),
        "eta_server": lambda: s.eta_server,
        "mu": lambda: s.mu,
        "alpha": lambda: s.alpha,
        "beta": lambda: beta,
        "apply": lambda: s.apply,
        "state": lambda: s.state,
        "split": lambda: s.split,
        "prime_rounds": lambda: s.prime_rounds,
        "anchor": lambda: s.anchor,
    }
    takes = inspect.signature(make).parameters
    arguments = {name: value() for name, value in offered.items() if name in takes}
    if arguments.get("apply") is None and takes.get("apply", None) is not None:
        arguments.pop("apply")  # each algorithm's own default
    if s.split and "split" not in takes:
        raise ConfigError(f"setting: split cohorts are an option of Mime and its variants, not of {s.algorithm!r}")
    if s.state == "local" and "state" not in takes:
        raise ConfigError(f"setting: state='local' is an option of mime and mime_lite, not of {s.algorithm!r}")
    return make(**arguments)


def rate(setting: Setting) -> Any:
    """The client rate: a number, or a schedule that ends near zero."""
    eta, rounds = setting.eta, setting.rounds
    if setting.decay == "constant":
        return eta
    assert eta is not None
    assert rounds is not None

    def falling(t: int) -> float:
        share = min(t / rounds, 1.0)
        left = 1 - share if setting.decay == "linear" else (1 + math.cos(math.pi * share)) / 2
        return eta * max(left, 1e-3)

    return falling


def label(setting: Setting) -> str:
    """What people call the method: Mime, MimeLiteAdam, FedAvgMom, Loc-Mime."""
    name = _NAMES[setting.algorithm]
    if setting.algorithm.endswith("_mvr") or (setting.algorithm not in TRACKING and setting.base == "sgd"):
        return name + messages.label(setting)
    if setting.state == "local":
        name = f"Loc-{name}"
    return name + _SHORT.get(setting.base or "", str(setting.base).capitalize()) + messages.label(setting)
