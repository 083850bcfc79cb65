"""From names to objects: every algorithm with every base, its defaults, its name, its rate."""

import dataclasses

import pytest

import fedmime as fm
from fedmime.errors import ConfigError
from fedmime.experiments import recipes, tasks
from fedmime.experiments.compare import methods
from fedmime.experiments.setting import ALGORITHMS, BASES, Inner, Optimizer, Server, Setting

TASK = tasks.get("digits-logistic")


def _made(**fields: object):
    return recipes.algorithm(recipes.resolved(Setting(task=TASK.name, **fields), TASK))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("base", [None, *BASES])
def test_every_algorithm_takes_every_base(algorithm, base) -> None:
    full = recipes.resolved(Setting(task=TASK.name, algorithm=algorithm, base=base), TASK)
    assert isinstance(recipes.algorithm(full), fm.algorithms.Algorithm)
    assert recipes.resolved(full, TASK) == full
    name = recipes.label(full)
    assert name
    assert not name.endswith(" ")


def test_numbers_arrive_where_they_are_used() -> None:
    o, a = fm.optimizers, fm.algorithms
    assert _made(algorithm="mime", base="adam", eta=0.2, optimizer=Optimizer(beta1=0.5, eps=0.1)) == a.mime(
        o.adam(beta1=0.5, eps=0.1), 0.2
    )
    assert _made(algorithm="fedavg", base="momentum", eta=0.2, eta_server=0.5) == a.fedavg(0.2, o.momentum(), 0.5)
    assert _made(algorithm="fedprox", mu=0.7) == a.fedprox(0.1, 0.7)
    assert _made(algorithm="feddyn", alpha=0.7) == a.feddyn(0.1, 0.7)
    assert _made(algorithm="mime_mvr", optimizer=Optimizer(beta=0.3)) == a.mime_mvr(0.1, 0.3)
    assert _made(algorithm="mime_lite", base="sgd", split=True, state="local") == a.mime_lite(
        o.sgd(), 0.1, split=True, state="local"
    )
    assert _made(algorithm="fedavg", client=Inner(optimizer="adamw", beta1=0.5), eta=0.1) == a.fedavg(
        0.1, client=o.adamw(beta1=0.5)
    )
    assert _made(algorithm="fednova", client=Inner(optimizer="momentum"), mu=0.2) == a.fednova(0.1, 0.2, o.momentum())
    assert _made(algorithm="diloco", eta=0.1) == a.diloco(0.1)
    assert _made(algorithm="diloco", eta=0.1, eta_server=1.0, optimizer=Optimizer(beta=0.5)) == a.diloco(0.1, 0.5, 1.0)
    assert _made(algorithm="fedcm", alpha=0.7) == a.fedcm(0.1, 0.7)
    assert _made(algorithm="ghbm", tau=3) == a.ghbm(0.1, tau=3)
    assert _made(algorithm="fedacg") == a.fedacg(0.1)
    assert _made(algorithm="fedexp", cap=2.0, optimizer=Optimizer(eps=0.1)) == a.fedexp(0.1, 0.1, 2.0)
    assert _made(algorithm="fedvarp", base="adam") == a.fedvarp(0.1, o.adam())
    assert _made(
        algorithm="centralized", base="adamw", eta=0.1, optimizer=Optimizer(weight_decay=0.3)
    ) == a.centralized(o.adamw(weight_decay=0.3), 0.1)
    assert _made(algorithm="scaffold", server=Server("adam")) == a.scaffold(0.1, o.adam())


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"algorithm": "fedavg", "split": True}, "split cohorts are an option of Mime"),
        ({"algorithm": "fedavg", "state": "local"}, "state='local' is an option of mime and mime_lite"),
        ({"base": "sgd", "optimizer": Optimizer(beta2=0.5)}, "optimizer.beta2 is no number of sgd"),
        ({"algorithm": "mime", "client": Inner(optimizer="adam")}, "client.optimizer is an option of fedavg"),
        ({"algorithm": "fedavg", "client": Inner(beta1=0.5)}, "client.beta1 needs client.optimizer"),
        ({"algorithm": "fedavg", "client": Inner(optimizer="sgd", beta=0.5)}, "client.beta is no number of sgd"),
        ({"algorithm": "fednova", "client": Inner(optimizer="adam")}, "fednova: client must be"),
        ({"algorithm": "unknown"}, "algorithm must be one of"),
        ({"base": "unknown"}, "base must be one of"),
        ({"decay": "unknown"}, "decay must be one of"),
        ({"eta": -1.0}, "eta must be positive"),
        ({"cohort": 0}, "cohort must be a whole number of at least 1"),
    ],
)
def test_what_does_not_go_together(fields: dict, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        _made(**fields)


def test_defaults_are_the_tasks() -> None:
    full = recipes.resolved(Setting(task=TASK.name), TASK)
    assert (full.rounds, full.cohort, full.batch, full.epochs, full.target) == (100, 10, 10, 1, 0.85)
    assert recipes.resolved(Setting(task=TASK.name, steps=7), TASK).epochs is None
    assert (full.base, full.eta) == ("momentum", TASK.eta)
    adam = recipes.resolved(Setting(task=TASK.name, base="adam"), TASK)
    assert adam.eta is not None
    assert adam.eta < TASK.eta
    inner = recipes.resolved(Setting(task=TASK.name, algorithm="diloco"), TASK)
    assert (inner.eta, inner.client.optimizer, inner.eta_server) == (adam.eta, "adamw", 0.7)
    other = recipes.resolved(Setting(task=TASK.name, algorithm="fedavg", base="adam"), TASK)
    assert (other.eta, other.server.optimizer) == (TASK.eta, "adam")


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({}, "MimeMom"),
        ({"base": "sgd"}, "MimeSGD"),
        ({"algorithm": "mime_lite", "base": "adam"}, "MimeLiteAdam"),
        ({"state": "local"}, "Loc-MimeMom"),
        ({"algorithm": "fedavg"}, "FedAvg"),
        ({"algorithm": "fedavg", "base": "momentum"}, "FedAvgMom"),
        ({"algorithm": "mime_mvr"}, "MimeMVR"),
        ({"algorithm": "fedavg", "client": Inner(optimizer="adamw")}, "FedAvg with client AdamW"),
        ({"algorithm": "diloco", "base": "adam"}, "DiLoCo"),
        ({"algorithm": "fedcm", "base": "momentum"}, "FedCMMom"),
        ({"algorithm": "fedexp", "base": "momentum"}, "FedExP"),
        ({"algorithm": "server_only", "base": "adam"}, "Server-only Adam"),
        ({"algorithm": "centralized", "base": "sm3"}, "Centralized Sm3"),
    ],
)
def test_methods_have_the_papers_names(fields: dict, name: str) -> None:
    assert recipes.label(recipes.resolved(Setting(task=TASK.name, **fields), TASK)) == name


@pytest.mark.parametrize("decay", ["linear", "cosine"])
def test_rates_fall_to_almost_nothing(decay) -> None:
    rate = recipes.rate(recipes.resolved(Setting(task=TASK.name, eta=0.5, rounds=10, decay=decay), TASK))
    values = [rate(t) for t in range(12)]
    assert values[0] == 0.5
    assert values[5] == pytest.approx(0.25)
    assert values == sorted(values, reverse=True)
    assert values[-1] == pytest.approx(0.0005)


def test_methods_differ_from_the_common_setting_where_they_say() -> None:
    common = Setting(task=TASK.name, eta=0.3, base="adam", seed=5)
    found = methods(["fedavg", "mime:momentum@0.1", "mine=mime_lite@1e-2"], common)
    assert [method.label for method in found] == [None, None, "mine"]
    assert [method.setting for method in found] == [
        dataclasses.replace(common, algorithm="fedavg"),
        dataclasses.replace(common, algorithm="mime", base="momentum", eta=0.1),
        dataclasses.replace(common, algorithm="mime_lite", eta=0.01),
    ]
    with pytest.raises(ConfigError, match="name at least one"):
        methods([], common)
