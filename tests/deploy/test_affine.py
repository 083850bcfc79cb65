"""The affine rule against the algorithms' own text, on quadratics and without any framework."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedmime as fm
from algorithms.cases import CASES
from deploy.affine_setting import MOST, Outcome, Round, asks, by_messages, by_reference, error, shelve
from deploy.quadratic import SHAPES, Quadratic, before
from fedmime.aggregation.aggregator import PLAIN
from fedmime.algorithms.mime import Mime
from fedmime.deploy import affine
from fedmime.deploy.affine_node import AffineNode
from fedmime.deploy.protocol import unpack

a, o, g = fm.algorithms, fm.optimizers, fm.aggregation
MODEL = {name: np.zeros(shape) for name, shape in SHAPES.items()}
LOCAL = {case.name: case.algorithm for case in CASES if case.algorithm.local_steps and not case.algorithm.pooled}
CAN = [
    name
    for name in LOCAL
    if name.startswith(("fedavg/sgd/", "fedprox/sgd/", "scaffold/sgd/", "fedcm/", "fedacg"))
    or (name.startswith(("mime/", "mime_lite/adam")) and name.endswith("/frozen"))
]
CANNOT = [
    name
    for name in LOCAL
    if name.startswith(("loc_", "mime_mvr", "mime_lite_mvr", "feddyn", "fednova", "fedexp", "ghbm"))
]
CANNOT += [name for name in LOCAL if name.startswith("mime") and name.endswith("/lookahead")]


def _by_node(state: Round, directory: Path) -> Outcome:
    shelve(state, directory)
    return by_messages(state, AffineNode(Quadratic(state.columns), "c", directory))


@pytest.mark.parametrize("name", CAN)
def test_the_rule_says_what_the_algorithm_says(name: str, tmp_path: Path, fact) -> None:
    @settings(max_examples=4)
    @given(
        seed=st.integers(0, 2**32),
        n=st.sampled_from([3, 7]),
        batch=st.sampled_from([None, 3]),
        length=st.sampled_from([(2, None), (None, 4)]),
    )
    def holds(seed: int, n: int, batch: int | None, length: tuple[int | None, int | None]) -> None:
        state = before(LOCAL[name], seed, n, batch, *length)
        found = error(_by_node(state, tmp_path), by_reference(state))
        fact("affine rule against the algorithm's text, relative error in float64", found)
        assert found <= 1e-12

    holds()


@pytest.mark.parametrize("name", [name for name in LOCAL if "-split/" in name and name.endswith("/frozen")])
def test_split_cohorts_are_no_concern_of_a_client(name: str) -> None:
    refused = name.startswith("loc_")
    with pytest.raises(fm.ConfigError) if refused else contextlib.nullcontext():
        affine.check(LOCAL[name], PLAIN, MODEL)


@pytest.mark.parametrize("name", CANNOT)
def test_what_is_no_rule_is_refused(name: str) -> None:
    with pytest.raises(
        fm.ConfigError, match=r"cannot follow (FedDyn|FedNova|FedExP|GHBM|MimeMVR|Mime with state=.*); accepted are"
    ):
        affine.check(LOCAL[name], PLAIN, MODEL)


class Doubled(Mime):
    """A user's variant, whose local step is another one."""


OWN = o.custom(lambda x: (), lambda g, s: g, lambda g, s: ())


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        (a.mime(OWN, 0.1), "Mime with the base optimizer Custom"),
        (a.mime(o.from_optax(optax.sgd(0.1)), 1.0), "Mime with the base optimizer Optax"),
        (a.feddyn(0.1, 0.2), "FedDyn"),
        (a.fedavg(0.1, client=o.sgd()), "LocalFedAvg"),
        (a.fedvarp(0.1), "FedVARP"),
        (a.server_only(o.sgd(), 0.1), "ServerOnly"),
        (a.centralized(o.sgd(), 0.1), "Centralized"),
        (Doubled(o.sgd(), 0.1, 1.0, True, "frozen", "fixed", False, 0), "Doubled"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_strangers_are_refused_by_name(algorithm: Any, words: str) -> None:
    with pytest.raises(fm.ConfigError, match=f"cannot follow {words}; accepted are"):
        affine.check(algorithm, PLAIN, MODEL)


@pytest.mark.parametrize(
    ("aggregation", "words"),
    [
        (g.chain(g.quantize(8)), "quantize"),
        (g.chain(g.clip(1.0), g.quantize(8)), "clip, quantize"),
        (g.chain(down=g.quantize(8)), "quantize"),
        (g.error_feedback(g.top_k(0.5)), "topk"),
    ],
)
def test_encoded_messages_are_refused(aggregation: Any, words: str) -> None:
    with pytest.raises(fm.ConfigError, match=f"aggregation must encode nothing, got {words}$"):
        affine.check(a.fedavg(0.1), aggregation, MODEL)


def test_robust_means_are_the_servers_own() -> None:
    affine.check(a.fedavg(0.1), g.chain(g.median()), MODEL)


def test_random_losses_are_refused() -> None:
    with pytest.raises(fm.ConfigError, match="dropout must be 0"):
        affine.check(a.fedavg(0.1), PLAIN, MODEL, random=True)


def test_models_of_other_precisions_are_refused() -> None:
    with pytest.raises(fm.ConfigError, match="needs a model of float32 or of float64, got float16"):
        affine.check(a.fedavg(0.1), PLAIN, {"w": np.zeros(2, np.float16)})


@pytest.mark.parametrize(
    ("algorithm", "models"),
    [
        (a.fedavg(0.1), 1),
        (a.fedprox(0.1, 0.2), 1),
        (a.scaffold(0.1), 2),
        (a.mime(o.sgd(), 0.1), 2),
        (a.mime(o.momentum(), 0.1), 2),
        (a.mime(o.rmsprop(), 0.1), 3),
        (a.mime(o.adam(), 0.1), 3),
        (a.mime_lite(o.sgd(), 0.1), 1),
        (a.mime_lite(o.momentum(), 0.1), 2),
        (a.mime_lite(o.rmsprop(), 0.1), 2),
        (a.mime_lite(o.adam(), 0.1), 3),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, int) else "",
)
def test_what_is_constant_is_sent_once(algorithm: Any, models: int) -> None:
    """Model sizes down: Mime with momentum needs two instead of x, c and m; scales that are one number are sent so."""
    state = before(algorithm)
    assert sum(len(unpack(request, MOST).payload) for request in asks(state)) == models * state.model.nbytes
