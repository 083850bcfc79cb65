"""From names and numbers to the objects that run: optimizers, algorithms, what they are called."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from fedmime import named
from fedmime.algorithms import Algorithm
from fedmime.errors import ConfigError
from fedmime.experiments import makers, messages
from fedmime.experiments.setting import TRACKING, Inner, Optimizer, Setting, located, own, store_of
from fedmime.experiments.task import Task, check_target
from fedmime.optimizers import BaseOptimizer
from fedmime.validation import LARGEST_SEED, POSITIVE, choice, count, real

# Rates of adaptive optimizers are in units of weights, not of gradients: a fraction of what suits SGD.
_RATES = {"adagrad": 0.3, "sm3": 0.3} | dict.fromkeys(("adam", "adamw", "rmsprop", "yogi", "adafactor"), 0.03)
_SERVER_RATES = {"diloco": 0.7}  # of algorithms that do not simply move to the mean
_NAMES = {
    "mime": "Mime",
    "mime_lite": "MimeLite",
    "mime_mvr": "MimeMVR",
    "mime_lite_mvr": "MimeLiteMVR",
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "scaffold": "SCAFFOLD",
    "feddyn": "FedDyn",
    "fednova": "FedNova",
    "fedvarp": "FedVARP",
    "fedexp": "FedExP",
    "fedcm": "FedCM",
    "ghbm": "GHBM",
    "fedacg": "FedACG",
    "diloco": "DiLoCo",
    "server_only": "Server-only ",
    "server_only_mvr": "Server-only MVR",
    "centralized": "Centralized ",
}
_SHORT = {"sgd": "SGD", "momentum": "Mom", "adamw": "AdamW", "rmsprop": "RMSProp"}
_REQUIRED = {"beta": 0.9, "mu": 0.1}  # numbers of algorithms that have no default of their own


def resolved(setting: Setting, task: Task) -> Setting:
    """The setting with the task's defaults filled in, every number checked."""
    setting = located(setting)
    makers.check("algorithm", setting.algorithm)
    tracks = tracking(setting)
    base = setting.base or setting.server.optimizer or ("momentum" if tracks else "sgd")
    makers.check("base", base)
    choice("setting", "decay", setting.decay, ("constant", "cosine", "linear"))
    server = base if setting.server.optimizer is None else setting.server.optimizer
    makers.check("server.optimizer", server)
    client = _client(setting)
    rate = task.eta * _RATES.get(base if tracks else client.optimizer or "sgd", 1.0)
    rated = takes_rate(setting.algorithm)
    if not rated and setting.eta is not None:
        raise ConfigError(f"setting: eta={setting.eta!r} is no number of {setting.algorithm!r}, which has its own rate")
    epochs = setting.epochs if setting.epochs is not None or setting.steps is not None else task.epochs
    full = dataclasses.replace(
        setting,
        base=base,
        eta=(rate if rated else None) if setting.eta is None else setting.eta,
        eta_server=_SERVER_RATES.get(setting.algorithm, 1.0) if setting.eta_server is None else setting.eta_server,
        rounds=task.rounds if setting.rounds is None else setting.rounds,
        cohort=task.cohort if setting.cohort is None else setting.cohort,
        batch=task.batch_size if setting.batch is None else setting.batch,
        epochs=epochs,
        target=task.target if setting.target is None and setting.target_gap is None else setting.target,
        target_gap=task.target_gap if setting.target is None and setting.target_gap is None else setting.target_gap,
        optimum=task.optimum if setting.optimum is None else setting.optimum,
        server=dataclasses.replace(setting.server, optimizer=server),
        client=client,
    )
    for name in ("rounds", "cohort", "batch", "evaluate_every"):
        count("setting", name, getattr(full, name), least=1)
    for name, least in (("epochs", 1), ("steps", 1), ("clients_every", 0)):
        if getattr(full, name) is not None:
            count("setting", name, getattr(full, name), least)
    count("setting", "seed", full.seed, most=LARGEST_SEED)
    if full.eta is not None:
        real("setting", "eta", full.eta, POSITIVE)
    check_target("setting", full.target, full.target_gap, full.optimum)
    return full


def _client(setting: Setting) -> Inner:
    """The clients' own optimizer; DiLoCo has one by default."""
    inner = setting.client
    if inner.optimizer is None and setting.algorithm == "diloco":
        decay = 0.1 if inner.weight_decay is None else inner.weight_decay
        return dataclasses.replace(inner, optimizer="adamw", weight_decay=decay)
    if inner.optimizer is not None:
        makers.check("client.optimizer", inner.optimizer)
    elif inner != Inner():
        given = next(name for name, value in dataclasses.asdict(inner).items() if value is not None)
        raise ConfigError(f"setting: client.{given} needs client.optimizer, whose number it is")
    return inner


def optimizer(name: str, numbers: Optimizer) -> BaseOptimizer:
    """The optimizer of a name; numbers it does not have are ignored where they are the default, else refused."""
    make = makers.found("base", name)
    takes = makers.parameters(make)
    given = {key: value for key, value in dataclasses.asdict(numbers).items() if value is not None}
    place = "client" if given.pop("optimizer", None) else "optimizer"
    if foreign := [key for key in given if key not in takes and (key != "beta" or place == "client")]:
        has = ", ".join(takes) or "none"
        raise ConfigError(f"setting: {place}.{foreign[0]} is no number of {name}; it has {has}")
    return makers.made("base", name, make, {key: value for key, value in given.items() if key in takes})


def algorithm(setting: Setting) -> Algorithm:
    """The algorithm of a resolved setting."""
    s = setting
    make = makers.found("algorithm", s.algorithm)
    offered = {
        "base": lambda: optimizer(s.base or "", s.optimizer),
        "server": lambda: optimizer(s.server.optimizer or "", s.optimizer),
        "client": lambda: None if s.client.optimizer is None else optimizer(s.client.optimizer, s.client),
        "eta": lambda: rate(s),
        "eta_server": lambda: s.eta_server,
        "mu": lambda: s.mu,
        "alpha": lambda: s.alpha,
        "beta": lambda: s.optimizer.beta,
        "tau": lambda: s.tau,
        "eps": lambda: s.optimizer.eps,
        "cap": lambda: s.cap,
        "apply": lambda: s.apply,
        "state": lambda: s.state,
        "split": lambda: s.split,
        "prime_rounds": lambda: s.prime_rounds,
        "anchor": lambda: s.anchor,
    }
    takes = makers.parameters(make)
    wanted = {name: value() for name, value in offered.items() if name in takes}
    required = {name: value for name, value in _REQUIRED.items() if makers.is_required(takes, name)}
    arguments = required | {name: value for name, value in wanted.items() if value is not None}  # else its own default
    if s.split and "split" not in takes:
        raise ConfigError(f"setting: split cohorts are an option of Mime and its variants, not of {s.algorithm!r}")
    if s.state == "local" and "state" not in takes:
        raise ConfigError(f"setting: state='local' is an option of mime and mime_lite, not of {s.algorithm!r}")
    if s.client.optimizer is not None and "client" not in takes:
        raise ConfigError(
            f"setting: client.optimizer is an option of fedavg, fednova and diloco, not of {s.algorithm!r}"
        )
    return makers.made("algorithm", s.algorithm, make, arguments, tuple(offered))


def tracking(setting: Setting) -> bool:
    """Whether clients run the base optimizer, as in Mime."""
    if named.is_named(setting.algorithm):
        return "base" in makers.parameters(makers.found("algorithm", setting.algorithm))
    return setting.algorithm in TRACKING


def takes_rate(algorithm: str) -> bool:
    """Whether an algorithm has the client rate of a setting; a user's own may have one of its own instead."""
    return not named.is_named(algorithm) or "eta" in makers.parameters(makers.found("algorithm", algorithm))


def sources(setting: Setting) -> dict[str, str]:
    """The files of the user's own code that a setting names, each with its sha256, by the field that names it."""
    names = ({"task": setting.task} if named.is_named(setting.task) and store_of(setting.task) is None else {}) | own(
        setting
    )
    for field, name in names.items():
        named.load(field, name)
    return {field: named.digest(name) for field, name in names.items()}


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
    """What people call the method: Mime, MimeLiteAdam, FedAvgMom, Loc-Mime, or the name of a function of their own."""
    takes = makers.parameters(makers.found("algorithm", setting.algorithm))
    if named.is_named(setting.algorithm):
        name = setting.algorithm.rpartition(":")[2] + (f" with {_short(setting.base)}" if "base" in takes else "")
    else:
        name = _NAMES[setting.algorithm]
    if setting.state == "local":
        name = f"Loc-{name}"
    if not named.is_named(setting.algorithm) and ("base" in takes or ("server" in takes and setting.base != "sgd")):
        name += _short(setting.base)
    inner = setting.client.optimizer
    if inner is not None and (setting.algorithm, inner) != ("diloco", "adamw"):
        name += f" with client {_short(inner)}"
    return name + messages.label(setting)


def _short(optimizer_name: str | None) -> str:
    name = optimizer_name or ""
    return name.rpartition(":")[2] if named.is_named(name) else _SHORT.get(name, name.capitalize())
