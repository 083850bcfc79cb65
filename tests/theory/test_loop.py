"""The compact loop of `reproduce theory` against the engine, and what it shows at a small size."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedmime as fm
from fedmime.experiments import theory_figures
from fedmime.experiments.theory import SCALES, draw, run
from fedmime.experiments.theory_deviation import deviation
from fedmime.experiments.theory_landscape import landscape
from fedmime.experiments.theory_loop import play
from fedmime.experiments.theory_rounds import tuned
from fedmime.vector import Vector

K, S = 4, 3
ALGORITHMS = {
    "mime": fm.algorithms.mime(fm.optimizers.momentum(0.5), 0.1),
    "mime_mvr": fm.algorithms.mime_mvr(0.1, 0.8),
    "mime_lite_mvr": fm.algorithms.mime_lite_mvr(0.1, 0.8),
    "server_only_mvr": fm.algorithms.server_only_mvr(0.1, 0.8),
}


def _problem(land):
    def loss(x, batch, key):
        bent = land.bend * jnp.sum(x**2 / (1 + x**2))
        return jnp.einsum("i,nij,j->n", x, batch["a"], x) / 2 - batch["b"] @ x + bent

    return fm.models.from_functions(lambda key: land.start, loss)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_rounds_are_the_engines(name):
    algorithm = ALGORITHMS[name]
    land = landscape(0.3, bend=0.1, clients=6, dim=5, examples=K)
    cohort, offsets = jnp.asarray([4, 1, 3]), jnp.asarray([0, 2, 1])
    random = np.random.default_rng(0)
    fields = {"x_old": Vector(random.normal(size=5)), "m": Vector(random.normal(size=5))} if "mvr" in name else {}
    state = algorithm.init(np.asarray(land.start))
    state = state._replace(round=algorithm.gradient_rounds, server=state.server._replace(**fields))
    batches = []
    for i, offset in zip(cohort.tolist(), offsets.tolist(), strict=True):
        zeta = np.roll(np.asarray(land.noise[i]), -offset, axis=0)
        a = np.broadcast_to(land.hessians[i], (K, 1, 5, 5))
        batches.append({"a": a, "b": np.asarray(land.linear[i]) + zeta[:, None]})
    theirs, info = fm.run_round(
        algorithm, _problem(land), state, fm.Cohort.from_batches(batches), drift=True, devices=1
    )
    ours, seen = jax.jit(play)(algorithm, state.server, land, cohort, offsets, K)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs.server), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)
    assert float(seen.drift) == pytest.approx(info.drift, rel=1e-9)


@pytest.mark.parametrize("problem", ["quadratic", "non-convex"])
def test_constants_of_a_landscape_are_those_asked_for(problem):
    land = landscape(0.25, bend=0.2 * (problem != "quadratic"), dim=6, clients=20, G2=0.5, sigma2=2.0)
    mean = land.hessians.mean(0)
    assert max(np.linalg.norm(a - mean, 2) for a in land.hessians) == pytest.approx(0.25)
    assert np.linalg.norm(mean, 2) + 2 * land.bend == pytest.approx(1.0)
    assert land.gradient_dissimilarity(np.zeros(6)) == pytest.approx(0.5)
    assert np.mean(np.sum(np.asarray(land.noise) ** 2, axis=2)) == pytest.approx(2.0)
    x = np.asarray(land.start)
    assert np.allclose(land.mean_gradient(x), land.gradients(x, jnp.arange(20)).mean(0))


@pytest.mark.parametrize("method", ["Mime", "MimeLite"])
def test_deviation_grows_linearly_under_its_bound(method, fact):
    found = deviation("non-convex", method, "adagrad", 6)
    assert found["slope"] == pytest.approx(1, abs=0.1)
    assert found["slope_of_square"] == pytest.approx(2, abs=0.2)
    assert found["largest_share_of_bound"] <= 1
    fact("slope of the deviation against the step, distance from 1", abs(found["slope"] - 1))


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    return run("smoke", tmp_path_factory.mktemp("theory"))


def test_mime_mvr_needs_fewer_rounds_as_clients_grow_alike(smoke, fact):
    factors = [row["factor"] for row in smoke["factors"]]  # at δ/L = 1 and 1/10
    assert factors[0] == pytest.approx(1, abs=0.1)
    with jax.enable_x64(True):
        ours, theirs = (
            tuned(name, 0.01, 0.0, 100, 10, SCALES["smoke"].effort)["rounds"] for name in ("MimeMVR", "Server-only MVR")
        )
    factors.append(theirs / ours)
    assert factors == sorted(factors)
    assert factors[-1] >= 5
    fact("times fewer rounds of MimeMVR at 1/100", factors[-1])


def test_server_only_mvr_gains_nothing_from_alike_clients(smoke):
    rows = smoke["similarity"]["quadratic"]
    rounds = [row["rounds"] for row in rows if row["method"] == "Server-only MVR"]
    assert max(rounds) < 1.2 * min(rounds)


def test_results_are_plain_and_drawn(smoke, tmp_path, monkeypatch):
    assert json.loads(json.dumps(smoke, allow_nan=False)) == smoke
    parts = theory_figures.sections(smoke)
    monkeypatch.setattr(theory_figures, "pictures", lambda data: parts[0].figures)
    assert [path.name for path in draw(smoke, tmp_path)] == ["theory-similarity.png", "theory-similarity.pdf"]
    assert [row[0] for row in parts[0].table.rows] == [
        "MimeMVR, quadratic",
        "Server-only MVR, quadratic",
        "times fewer, quadratic",
    ]
    assert any(row[0].startswith("‖e‖ against η̃") for row in parts[-1].table.rows)
    assert all(row["error"] <= row["bound"] for row in smoke["errors"])


def test_refuses_an_unknown_scale(tmp_path):
    with pytest.raises(fm.ConfigError, match="theory: scale must be one of 'smoke', 'small', 'full', got 'huge'"):
        run("huge", tmp_path)
    assert set(SCALES) == {"smoke", "small", "full"}
