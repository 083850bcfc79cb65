"""Differential privacy from end to end: what is refused, the noise that is released, and ε over a run's whole life."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import fedmime as fm
from engine.setting import PROBLEM, a, o, population, same
from fedmime.aggregation.accounting import Ledger, Sampling, epsilon

g = fm.aggregation
MIME, FEDAVG = a.mime(o.momentum(0.6), 0.1), a.fedavg(0.1)
CLIENTS = population((4, 3, 5, 2, 4, 6, 3, 5))
POISSON = fm.Participation("poisson", minimum=0)


def _run(aggregation: Any, algorithm: Any = FEDAVG, rounds: int = 3, **others: Any) -> fm.Run:
    settings = {"cohort_size": 4, "batch_size": 3, "seed": 1, "weights": "uniform", "evaluate_every": 100, "devices": 1}
    return fm.simulate(algorithm, PROBLEM, CLIENTS, rounds, **(settings | others), aggregation=aggregation)


def _state(run: fm.Run) -> Any:
    assert run.state is not None
    return run.state


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "weights": ({"weights": "examples"}, "gaussian needs clients of equal weight: weights='uniform', got 'examples'"),
    "sampler": (
        {"participation": fm.Participation("by_size")},
        "gaussian needs sampler='uniform' or 'poisson', got 'by_size'",
    ),
    "with replacement": ({"participation": fm.Participation("with_replacement")}, "got 'with_replacement'"),
    "poisson in halves": (
        {"algorithm": a.mime(o.momentum(), 0.1, split=True), "participation": POISSON},
        "gaussian with sampler='poisson' needs split=False",
    ),
    "poisson with a minimum": ({"participation": fm.Participation("poisson")}, "minimum=0, got 0.5"),
    "scaffold": ({"algorithm": a.scaffold(0.1)}, "gaussian cannot protect Scaffold"),
    "feddyn": ({"algorithm": a.feddyn(0.1, 0.1)}, "gaussian cannot protect FedDyn"),
    "fedvarp": ({"algorithm": a.fedvarp(0.1)}, "gaussian cannot protect FedVARP"),
    "fedcm": (
        {"algorithm": a.fedcm(0.1)},
        "gaussian cannot protect FedCM, whose server needs the clients' local steps",
    ),
    "fedexp": (
        {"algorithm": a.fedexp(0.1)},
        "clip measures a message as one vector, and clients of FedExP send numbers",
    ),
    "a drawn iterate": ({"algorithm": a.mime_mvr(0.1, 0.9, output="random")}, "gaussian cannot protect MimeMVR"),
    "pooled": ({"algorithm": a.centralized(o.sgd(), 0.1)}, "aggregation must be None for Centralized"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_cannot_be_private_is_refused(name: str) -> None:
    others, words = REFUSALS[name]
    with pytest.raises(fm.ConfigError) as refusal:
        _run(g.gaussian(1.0, 1.0), **others)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_single_round_has_no_target() -> None:
    cohort = fm.Cohort.from_batches([{"x": np.ones((1, 2, 4)), "y": np.zeros((1, 2), int)}])
    state = FEDAVG.init(PROBLEM.init(jax.random.key(0)))
    with pytest.raises(fm.ConfigError, match="run_round: target_epsilon belongs to a whole run"):
        fm.run_round(FEDAVG, PROBLEM, state, cohort, aggregation=g.gaussian(1.0, target_epsilon=1.0))


def test_epsilon_is_told_every_round_and_mime_releases_twice() -> None:
    z, sampling = 1.5, Sampling("fixed", 4, 8)
    told = _run(g.gaussian(1.0, z), MIME).history["epsilon"]
    assert (np.diff(told) > 0).all()
    expected = [epsilon(Ledger(z / math.sqrt(2), sampling).add(1, t), 1e-5) for t in (1, 2, 3)]
    np.testing.assert_allclose(told, expected, rtol=0.02)  # both are upper bounds on grids of their own
    once = _run(g.gaussian(1.0, z / math.sqrt(2))).history["epsilon"]
    np.testing.assert_allclose(told, once, rtol=0.02)
    assert (told > _run(g.gaussian(1.0, z)).history["epsilon"]).all()


TARGETED = {
    "fedavg": FEDAVG,
    "mime_lite, primed": a.mime_lite(o.adam(), 0.1),
    "mime_mvr, two gradients in its first rounds": a.mime_mvr(0.1, 0.9, init_rounds=2),
}


@pytest.mark.parametrize("name", TARGETED)
def test_a_target_is_reached_at_the_end_and_not_passed(name: str) -> None:
    run = _run(g.gaussian(0.1, target_epsilon=3.0), TARGETED[name], rounds=4)
    told, counts = run.history["epsilon"], _state(run).aggregation.rounds.tolist()
    assert 2.99 < told[-1] <= 3.0
    assert (told[:-1] < told[-1]).all()
    assert counts == {"fedavg": [0, 4, 0, 0], "mime_lite, primed": [0, 1, 3, 0]}.get(name, [0, 0, 2, 2])


@pytest.mark.parametrize("sampler", ["uniform", "poisson"])
def test_drop_out_reduces_neither_noise_nor_denominator(sampler: str, fact) -> None:
    """With a tiny norm a round releases nothing but noise, of deviation z C / m whoever came."""
    z, norm, rounds, m = 1e6, 1e-6, 40, 4
    participation = fm.Participation(sampler, drop_out=0.5, minimum=0)
    moves: list[float] = []
    run = _run(
        g.gaussian(norm, z),
        rounds=rounds,
        participation=participation,
        on_round=lambda info, _: moves.append(info.update_norm),
    )
    assert len(set(run.history["clients"])) > 2
    assert not run.history["abandoned"].any()
    entries = rounds * 15  # a model has 4 x 3 weights and 3 biases
    deviation = math.sqrt(np.square(moves).sum() / entries)
    fact(f"deviation of noise under drop-out over z C / m, {sampler}", deviation / (z * norm / m))
    assert deviation == pytest.approx(z * norm / m, rel=4 / math.sqrt(2 * entries))


def test_the_denominator_is_the_planned_cohort() -> None:
    """Two rounds from one start that differ in who drops out: each client adds a fourth of its clipped update."""
    norm = 1e-3  # every update is clipped to it
    whole, dropped = (
        _run(g.gaussian(norm, 1e-9), rounds=1, participation=fm.Participation(drop_out=rate, minimum=0))
        for rate in (0.0, 0.5)
    )
    assert whole.history["clipped"][0] == dropped.history["clipped"][0] == 1
    came = dropped.history["clients"][0]
    assert 0 < came < 4
    assert dropped.history["update_norm"][0] <= came / 4 * norm * (1 + 1e-6)
    assert whole.history["update_norm"][0] <= norm * (1 + 1e-6)
    mean = _run(g.clip(norm), rounds=1, participation=fm.Participation(drop_out=0.5, minimum=0))
    assert dropped.history["update_norm"][0] == pytest.approx(came / 4 * mean.history["update_norm"][0], rel=1e-5)


def test_an_empty_cohort_shows_nothing() -> None:
    """With Poisson cohorts of one on average, rounds without clients release noise as all others do."""
    run = _run(g.gaussian(1e-6, 1e6), MIME, rounds=6, cohort_size=1, participation=POISSON)
    nobody = run.history["clients"] == 0
    assert nobody.any()
    assert not run.history["abandoned"].any()
    assert (run.history["update_norm"][nobody] > 0.5).all()
    assert _state(run).aggregation.rounds.tolist() == [0, 0, 6, 0]  # empty ones are counted, too


ADAPTIVE = g.gaussian(0.05, 0.5, gradient_clip=0.3, quantile=0.5)


def test_2n_rounds_are_n_and_n(tmp_path: Path, fact) -> None:
    """Fault 46: ε, adapted norms and every bit of the model, after a stop and after a shorter run."""
    unbroken = _run(ADAPTIVE, MIME, rounds=4, run_dir=tmp_path / "unbroken")
    left = iter([None, signal.SIGTERM])
    with pytest.raises(fm.Stopped):
        _run(ADAPTIVE, MIME, rounds=4, run_dir=tmp_path / "stopped", stop=lambda: next(left))
    _run(ADAPTIVE, MIME, rounds=2, run_dir=tmp_path / "shorter")
    for name in ("stopped", "shorter"):
        resumed = _run(ADAPTIVE, MIME, rounds=4, run_dir=tmp_path / name)
        assert same(_state(resumed).server, _state(unbroken).server)
        assert same(_state(resumed).aggregation, _state(unbroken).aggregation)
        for figure in ("epsilon", "clip_norm", "clipped", "update_norm"):
            np.testing.assert_array_equal(resumed.history[figure], unbroken.history[figure])
        lines = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        assert [line["epsilon"] for line in lines] == unbroken.history["epsilon"].tolist()
        fact("private runs, broken off and resumed, that equal the unbroken one in ε, norms and bits")
    norms = unbroken.history["clip_norm"]
    assert len(set(norms)) == 4
    with pytest.raises(fm.CheckpointError, match=r"aggregation.privacy.noise_multiplier: 0.5 -> 0.6;"):
        _run(g.gaussian(0.05, 0.6, gradient_clip=0.3, quantile=0.5), MIME, rounds=6, run_dir=tmp_path / "stopped")
    with pytest.raises(fm.CheckpointError, match="aggregation"):
        _run(None, MIME, rounds=6, run_dir=tmp_path / "stopped")


_KILLED = """
import os, signal, sys
from aggregation.test_private_runs import ADAPTIVE, MIME, _run
done = iter(range(9))
def stop():
    if next(done) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
_run(ADAPTIVE, MIME, rounds=4, run_dir=sys.argv[1], stop=stop)
"""


def test_a_kill_does_not_lower_epsilon(tmp_path: Path) -> None:
    """Killed in its third round, before that was saved: resumed, it plays the round again with the same noise."""
    tests = str(Path(__file__).parents[1])
    path = os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", _KILLED, str(tmp_path / "killed")]
    ended = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    resumed, unbroken = _run(ADAPTIVE, MIME, rounds=4, run_dir=tmp_path / "killed"), _run(ADAPTIVE, MIME, rounds=4)
    assert same(_state(resumed).server, _state(unbroken).server)
    assert same(_state(resumed).aggregation, _state(unbroken).aggregation)
    np.testing.assert_array_equal(resumed.history["epsilon"], unbroken.history["epsilon"])
