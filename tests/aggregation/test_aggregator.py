"""What happens to messages on their way: steps that change nothing, refusals of runs, every client's own gradient."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedmime as fm
from engine.setting import CLASSES, DIM, PROBLEM, a, close, columns, o, population, same
from fedmime.aggregation import wire
from fedmime.aggregation.aggregator import sender_of
from fedmime.aggregation.encoder import GRADIENT, UPDATE
from fedmime.aggregation.gate import Reason
from fedmime.engine.backends.local import backend as local
from fedmime.engine.backends.local.layout import Layout
from fedmime.engine.backends.specification import Local
from fedmime.engine.sampling import Schedule
from fedmime.vector import Vector
from marking import fast

g = fm.aggregation
MOMENTUM = o.momentum(0.6)


def test_refusals_of_runs_in_one_clear_line() -> None:
    clients = population((3, 3))
    cases: list[tuple[Any, Any, str]] = [
        (a.fedavg(0.1), "median", "chain: parts must come from fm.aggregation, got 'median'"),
        (a.centralized(o.sgd(), 0.1), g.clip(1.0), "aggregation must be None for Centralized"),
        (a.scaffold(0.1), g.median(), "Median cannot combine what clients of Scaffold send to be summed"),
        (a.feddyn(0.1, 0.1), g.krum(1), "Krum cannot combine what clients of FedDyn send to be summed"),
        (
            a.fedexp(0.1),
            g.clip(1.0),
            "clip measures a message as one vector, and clients of FedExP send numbers beside",
        ),
        (a.fednova(0.1), g.median(), "Median measures a message as one vector, and clients of FedNova send numbers"),
        (a.fedavg(0.1), g.clip(lambda t: -1.0), "clip: norm(0) must be"),
    ]
    for algorithm, aggregation, words in cases:
        with pytest.raises(fm.ConfigError) as refusal:
            fm.simulate(algorithm, PROBLEM, clients, 1, 2, aggregation=aggregation)
        assert words in str(refusal.value)
        assert "\n" not in str(refusal.value)


def test_numbers_beside_vectors_are_finite_and_not_bounded() -> None:
    """A count of steps is no length: it must not make an update too long, whatever the bound."""
    update, message = Vector({"w": jnp.full(3, 0.5)}), g.chain(g.mean())
    verdicts = [
        int(message.reason_of(received, UPDATE, 1.0))
        for received in (
            ((update, jnp.asarray(1e6)), ()),
            ((update, jnp.asarray(jnp.nan)), ()),
            ((10 * update, jnp.asarray(1.0)), ()),
            (Vector({"w": jnp.asarray(1e6)}), ()),  # a model of one number has a length
        )
    ]
    assert verdicts == [Reason.ACCEPTED, Reason.NOT_FINITE, Reason.NORM, Reason.NORM]


def test_an_array_that_is_sent_twice_is_encoded_once() -> None:
    """FedDyn's movement serves both the mean and the sum: they must be the same after quantizing, and clip as one."""
    v, sender = {"w": jnp.linspace(-1.0, 1.0, 40)}, sender_of(UPDATE, jax.random.key(1), 2)
    aggregator = g.chain(g.clip(1.2 * float(jnp.linalg.norm(v["w"]))), g.quantize(2))
    (send, add), _ = aggregator.transmit((v, v), (), sender)
    assert same(send, add)
    assert aggregator.unclipped((v, v), sender)
    feedback = g.error_feedback(g.quantize(2))
    (send, add), residual = feedback.transmit((v, v), [jnp.zeros(40)], sender)
    assert same(send, add)
    close(send["w"] + residual[0], v["w"])


HALVES: dict[str, Any] = {
    "plain": g.mean(),
    "clip, quantize": g.chain(g.clip(0.5), g.quantize(5, rotate=True)),
    "random_k": g.chain(g.random_k(0.4), g.quantize(3)),
    "top_k with feedback": g.error_feedback(g.chain(g.top_k(0.3), g.quantize(4))),
    "low_rank with feedback": g.error_feedback(g.low_rank(1)),
    "noise": g.chain(g.gaussian(0.3, 1.0), g.quantize(6)),
}


@pytest.mark.parametrize(
    ("name", "kind"),
    [*((name, UPDATE) for name in HALVES), *((name, GRADIENT) for name in ("clip, quantize", "noise"))],
)
def test_two_halves_with_bytes_between_them_are_the_whole_way(name: str, kind: str) -> None:
    aggregator, sender = g.chain(HALVES[name]), sender_of(kind, jax.random.key(1), 2)
    arrays = [jnp.linspace(-1.0, 1.0, 40).reshape(8, 5), jnp.arange(3), jnp.linspace(0.0, 2.0, 7)]
    residual = [jnp.full_like(array, 0.1) if array.dtype != int else array * 0 for array in arrays]
    residual = residual if aggregator.error_feedback else ()
    whole, left = aggregator.transmit(arrays, residual, sender)
    sent, kept = aggregator.send(arrays, residual, sender)
    arrived = jax.tree.map(jnp.asarray, wire.unpack(wire.pack(jax.device_get(sent)), sent))
    assert same(aggregator.receive(arrived, arrays, sender), whole)
    assert same(kept, left)


def _server(run: fm.Run) -> Any:
    assert run.state is not None
    return run.state.server


# Steps that change nothing. What cannot be left out, a clip at 1e30, has every client's own gradient computed; then
# sums over clients are taken in another order, and agree to rounding.

IDENTITIES: dict[str, Any] = {
    "clip(inf)": g.clip(math.inf),
    "clip(1e30)": g.clip(1e30),
    "quantize(32)": g.quantize(32),
    "trimmed_mean(0)": g.trimmed_mean(0),
    "random_k(1)": g.random_k(1.0),
    "gaussian(inf, 0)": g.gaussian(math.inf, 0),
    "all of them": g.chain(
        g.clip(math.inf), g.random_k(1.0), g.top_k(1.0), g.quantize(32), g.trimmed_mean(0), down=g.quantize(32)
    ),
}
ALGORITHMS = {
    "fedavg": a.fedavg(0.1),
    "mime_lite": a.mime_lite(MOMENTUM, 0.1),
    "mime": a.mime(MOMENTUM, 0.1),
    "scaffold": a.scaffold(0.1),
}


@functools.cache
def _run(algorithm: str, identity: str | None) -> fm.Run:
    aggregation = None if identity is None else IDENTITIES[identity]
    return fm.simulate(
        ALGORITHMS[algorithm], PROBLEM, population((5, 3, 8, 1)), 3, 3, 3, devices=2, aggregation=aggregation
    )


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("identity", IDENTITIES)
def test_identities_equal_the_mean_bit_for_bit(algorithm: str, identity: str, fact) -> None:
    ours, plain = _run(algorithm, identity), _run(algorithm, None)
    if g.chain(IDENTITIES[identity]).by_client and algorithm.startswith("mime"):
        close(_server(ours), _server(plain))
        return
    assert same(_server(ours), _server(plain))
    for name in ("loss", "update_norm", "bytes_total"):
        np.testing.assert_array_equal(ours.history[name], plain.history[name])
    fact("identities of aggregation that equal the mean bit for bit")


def test_schedules_of_clips_attacks_and_combiners() -> None:
    clients = population((5, 3, 8, 4))
    told = fm.simulate(a.fedavg(0.1), PROBLEM, clients, 3, 4, aggregation=g.clip(lambda t: 0.1 / (1 + t))).history
    np.testing.assert_allclose(told["clip_norm"], [0.1, 0.05, 0.1 / 3])
    moving, fixed = (
        _server(fm.simulate(a.fedavg(0.1), PROBLEM, clients, 1, 4, aggregation=g.trimmed_mean(fraction)))
        for fraction in (lambda t: 0.3, 0.3)
    )
    assert same(moving, fixed)


# Every client's own gradient, whose weighted sum is the gradient of the union.


def _noisy_loss(params: Any, batch: Any, key: jax.Array) -> jax.Array:
    keep = jax.random.bernoulli(key, 0.7, batch["x"].shape)
    return PROBLEM.loss(params, {**batch, "x": jnp.where(keep, batch["x"], 0)}, key)


def _images(rng: np.random.Generator, n: int) -> dict[str, np.ndarray]:
    return {"x": rng.normal(size=(n, DIM)), "y": rng.integers(0, CLASSES, n).astype(np.int32)}


PLAIN_MODEL, RANDOM = (PROBLEM, columns), (fm.models.from_functions(PROBLEM.init, _noisy_loss), columns)
LOGISTIC = fm.models.logistic((DIM,), CLASSES), _images
MLP = fm.models.mlp((DIM,), CLASSES, (5,)), _images
MIME = a.mime(MOMENTUM, 0.1)
MVR, SPLIT = a.mime_mvr(0.1, 0.6, init_rounds=1), a.mime(MOMENTUM, 0.1, split=True)

# model and data, algorithm, epochs, back end
WAYS: dict[str, tuple[Any, Any, int, Local]] = {
    "logistic, two devices": (LOGISTIC, MIME, 1, Local(2)),
    "mlp, lanes and chunks of two": (MLP, MIME, 2, Local(1, Layout(2, 2))),
    "cached, MVR": (PLAIN_MODEL, MVR, 1, Local(3)),
    "random by steps": (RANDOM, MIME, 1, Local(2)),
    "random in chunks": (RANDOM, MIME, 2, Local(1, Layout(1, 2))),
    "random, split": (RANDOM, SPLIT, 1, Local(1)),
}


def _gradients(way: str, aggregation: Any) -> tuple[Any, list[fm.Info]]:
    """The server after two rounds, whose statistics hold c, and the reports."""
    (problem, draw), algorithm, epochs, backend = WAYS[way]
    if backend.layout is not None:
        backend = Local(backend.devices, Layout(backend.layout.lanes, backend.layout.chunk))
        problem = dataclasses.replace(problem, chunk=backend.layout.chunk)
    rng = np.random.default_rng(5)
    clients = fm.data.from_arrays({f"c{i}": draw(rng, n) for i, n in enumerate((1, 9, 5, 7, 3))})
    schedule = Schedule(4, 4, epochs, None, 0, "examples")
    state, infos = algorithm.init(jax.tree.map(lambda v: v.astype(jnp.float64), problem.init(jax.random.key(3)))), []
    for t in range(2):
        cohort = schedule.cohort(algorithm, clients, t)
        state, info = fm.run_round(
            algorithm, problem, state, cohort, jax.random.key(4), backend=backend, aggregation=aggregation
        )
        assert not info.abandoned
        infos.append(info)
    return state.server, infos


def _agrees(way: str, fact) -> None:
    (ours, told), (union, expected) = _gradients(way, g.clip(1e30)), _gradients(way, None)
    close(ours, union)
    np.testing.assert_allclose([i.gradient_norm for i in told], [i.gradient_norm for i in expected], rtol=1e-12)
    errors = [np.abs(p - q).max() for p, q in zip(jax.tree.leaves(ours), jax.tree.leaves(union), strict=True)]
    fact("mean of clients' own gradients against that of the union, error in float64", max(errors))


WAVES = ["logistic, two devices", "random, split"]


@pytest.mark.parametrize("way", fast([way for way in WAYS if way not in WAVES], {"random in chunks"}))
def test_clients_own_gradients_sum_to_that_of_the_union(way: str, fact) -> None:
    _agrees(way, fact)


@pytest.mark.parametrize("way", WAVES)
def test_the_same_in_several_waves(way: str, fact, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "WAVE_BYTES", 300)
    _agrees(way, fact)
