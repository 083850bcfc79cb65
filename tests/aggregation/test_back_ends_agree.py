"""The same messages on both back ends: encoded and decoded in compiled loops, or eagerly, one client at a time."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import fedmime as fm
from engine.setting import PROBLEM, a, o, population, same
from marking import fast

g = fm.aggregation
MOMENTUM, ADAM = o.momentum(0.6), o.adam(0.8, 0.9, eps=0.1)
EIGHT = g.quantize(8)
FLIP = g.attack("sign_flip", 0.3, 10.0, seed=3)

# what happens to messages, the algorithm, other arguments
CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "clip, mime": (g.clip(0.05, gradient=0.4), a.mime(MOMENTUM, 0.1), {}),
    "quantize(8) both ways, mime_lite": (g.chain(EIGHT, down=EIGHT), a.mime_lite(ADAM, 0.1), {}),
    "rotated, mime split": (g.quantize(4, rotate=True), a.mime(MOMENTUM, 0.1, split=True), {}),
    "low_rank, fedavg": (g.low_rank(1), a.fedavg(0.1), {}),
    "clip, random_k, quantize, server_only": (
        g.chain(g.clip(1.0), g.random_k(0.5), EIGHT),
        a.server_only(ADAM, 0.1),
        {},
    ),
    "feedback of top_k, scaffold": (g.error_feedback(g.top_k(0.3)), a.scaffold(0.1), {}),
    "feedback of top_k and quantize, feddyn": (
        g.error_feedback(g.chain(g.top_k(0.5), g.quantize(4))),
        a.feddyn(0.1, 0.5),
        {},
    ),
    "feedback, mime_mvr drawn": (g.error_feedback(g.low_rank(1)), a.mime_mvr(0.1, 0.6, output="random"), {}),
    "quantize(8) both ways, fednova": (g.chain(EIGHT, down=EIGHT), a.fednova(0.1), {}),
    "feedback of top_k, fedvarp": (g.error_feedback(g.top_k(0.3)), a.fedvarp(0.1), {}),
    "random_k, fedexp": (g.random_k(0.5), a.fedexp(0.1), {}),
    "clip and median, fedcm": (g.chain(g.clip(0.1), g.median()), a.fedcm(0.1, 0.5), {}),
    "noise, ghbm": (g.gaussian(0.1, 0.5), a.ghbm(0.1, 0.9, 1), {"weights": "uniform"}),
    "trimmed_mean, attacked mime_lite": (g.chain(FLIP, g.trimmed_mean(0.3)), a.mime_lite(ADAM, 0.1), {}),
    "geometric_median, attacked mime_mvr": (g.chain(FLIP, g.geometric_median(4)), a.mime_mvr(0.1, 0.6), {}),
    "krum, shifted server_only": (
        g.chain(g.attack("shift", 0.3, seed=3), EIGHT, g.krum(1)),
        a.server_only(MOMENTUM, 0.1),
        {},
    ),
    "nan, median of mime": (g.chain(g.attack("nan", 0.3, seed=3), g.median()), a.mime(MOMENTUM, 0.1), {}),
    "noise, dropped, mime": (
        g.gaussian(0.1, 0.5, gradient_clip=0.5),
        a.mime(MOMENTUM, 0.1),
        {"weights": "uniform", "participation": fm.Participation(drop_out=0.3, minimum=0), "seed": 14},
    ),
    "noise, quantized both ways, mime_mvr": (
        g.chain(g.gaussian(0.1, 0.5), EIGHT, down=EIGHT),
        a.mime_mvr(0.1, 0.6),
        {"weights": "uniform"},
    ),
    "adaptive, mime_lite, nobody or everybody": (
        g.gaussian(0.05, 0.5, quantile=0.5, gradient_clip=0.3),
        a.mime_lite(ADAM, 0.1),
        {"weights": "uniform", "participation": fm.Participation("poisson", minimum=0), "cohort_size": 2, "seed": 19},
    ),
}
CLIENTS = population((4, 3, 2, 1, 3))


def _run(name: str, backend: str) -> fm.Run:
    aggregation, algorithm, others = CASES[name]
    settings = {"cohort_size": 4, "batch_size": 3, "seed": 1, "evaluate_every": 100, **others}
    return fm.simulate(algorithm, PROBLEM, CLIENTS, 2, **settings, aggregation=aggregation, backend=backend)


# Every encoder, combiner and attack is in another case.
ALIKE = {"clip, mime", "quantize(8) both ways, mime_lite", "noise, quantized both ways, mime_mvr"}


@pytest.mark.parametrize("name", fast(CASES, ALIKE))
def test_every_kind_of_message_agrees(name: str, fact) -> None:
    ours, expected = _run(name, "local"), _run(name, "reference")
    assert ours.state is not None
    assert expected.state is not None
    errors = []
    for one, other in ((ours.state.server, expected.state.server), (_kept(ours), _kept(expected))):
        assert jax.tree.structure(one) == jax.tree.structure(other)
        for p, q in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
            np.testing.assert_allclose(p, q, 1e-12, 1e-12)
            errors.append(float(np.abs(np.asarray(p) - np.asarray(q)).max(initial=0)))
    assert same(ours.state.aggregation, expected.state.aggregation)
    assert ours.history.keys() == expected.history.keys()
    for figure in ours.history.keys() - {"seconds"}:
        np.testing.assert_allclose(ours.history[figure], expected.history[figure], 1e-9, 1e-12, err_msg=figure)
    assert not ours.history["abandoned"].any()
    fact("aggregation × algorithm on local against reference, error in float64", max(errors))


def _kept(run: fm.Run) -> list[Any]:
    """What all clients keep."""
    memory = None if run.state is None else run.state.memory
    return [] if memory is None else memory.read(list(range(5)))


def test_the_cases_are_what_they_say() -> None:
    assert g.attackers(5, 0.3, 3).sum() == 1  # one of five, so that a third is trimmed
    told = _run("nan, median of mime", "local").history
    assert told["refused_not_finite"].max() == 1
    run = _run("adaptive, mime_lite, nobody or everybody", "local")
    assert 0 in run.history["clients"]
    assert run.state is not None
    assert run.state.aggregation.norms != pytest.approx((0.05, 0.3))
    assert len(set(_run("noise, dropped, mime", "local").history["clients"])) > 1
