"""What rounds cost, counted from the messages, and the cohorts that the paper's budgets allow."""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedmime as fm
from engine.setting import PROBLEM, a, falling, o, population
from fedmime.algorithms import Algorithm, Client, Replies, Reply
from fedmime.hyperparameters import recipe
from fedmime.vector import Vector

cost, cohort_for_budget = fm.communication.cost, fm.communication.cohort_for_budget
PARAMS = {"w": np.zeros((40, 30), np.float32), "b": np.zeros(30, np.float32)}
MODEL = 4 * (40 * 30 + 30)
MOMENTUM, ADAGRAD, ADAM = o.momentum(), o.adagrad(), o.adam()


def _pairs(factory, base):
    return factory(base, 0.1, split=True)


# algorithm, cost of a client or pair, clients or pairs for budgets of 40 and 100: SPEC section 4
PAPER = {
    "FedAvg": (a.fedavg(0.1), 2, 20, 50),
    "MimeLiteMom": (_pairs(a.mime_lite, MOMENTUM), 5, 8, 20),
    "MimeLiteAdagrad": (_pairs(a.mime_lite, ADAGRAD), 5, 8, 20),
    "MimeLiteAdam": (_pairs(a.mime_lite, ADAM), 6, 6, 16),
    "MimeSGD": (_pairs(a.mime, o.sgd()), 5, 8, 20),
    "MimeMom": (_pairs(a.mime, MOMENTUM), 6, 6, 16),
    "MimeAdagrad": (_pairs(a.mime, ADAGRAD), 6, 6, 16),
    "MimeAdam": (_pairs(a.mime, ADAM), 7, 5, 14),
}


@pytest.mark.parametrize("name", PAPER)
def test_costs_and_cohorts_of_the_paper(name: str, fact) -> None:
    algorithm, sizes, forty, hundred = PAPER[name]
    assert cost(algorithm, PARAMS).model_sizes == sizes
    assert cohort_for_budget(algorithm, PARAMS, 40) == forty
    assert cohort_for_budget(algorithm, PARAMS, 100) == hundred
    fact("cohorts of the paper's communication budgets", 0)


# model-sizes: down and up of a client that trains; of one that only sends gradients; of a gradient-only round
EXACT = {
    "fedavg": (a.fedavg(0.1), (1, 1), None, None),
    "fedavg-adam": (a.fedavg(0.1, ADAM), (1, 1), None, None),  # the server's statistics never leave it
    "fedprox": (a.fedprox(0.1, 0.1), (1, 1), None, None),
    "scaffold": (a.scaffold(0.1), (2, 2), None, None),  # x, c; y - x, change of c_i
    "feddyn": (a.feddyn(0.1, 0.1), (1, 1), None, None),  # its movement serves both the mean and the sum
    "fedavg-client": (a.fedavg(0.1, client=o.adamw()), (1, 1), None, None),  # its statistics never leave the client
    "diloco": (a.diloco(0.1), (1, 1), None, None),
    "fedvarp": (a.fedvarp(0.1), (1, 1), None, None),  # the change of its movement serves both
    "fedcm": (a.fedcm(0.1), (2, 1), None, None),  # x, Δ; y - x
    "ghbm": (a.ghbm(0.1), (2, 1), None, None),
    "fedacg": (a.fedacg(0.1), (1, 1), None, None),
    "mime_lite-sgd": (a.mime_lite(o.sgd(), 0.1), (1, 1), None, None),
    "mime_lite-sgd-split": (_pairs(a.mime_lite, o.sgd()), (1, 1), (0, 0), None),
    "mime_lite-momentum": (a.mime_lite(MOMENTUM, 0.1), (2, 2), None, None),  # x, m; gradient, y - x
    "mime-sgd": (a.mime(o.sgd(), 0.1), (2, 2), None, None),  # x, c; gradient, y - x
    "mime-momentum": (a.mime(MOMENTUM, 0.1), (3, 2), None, None),
    "mime-adam": (a.mime(ADAM, 0.1), (4, 2), None, (1, 1)),
    "mime-adam-split": (_pairs(a.mime, ADAM), (4, 1), (1, 1), (1, 1)),
    "mime-rmsprop-split": (_pairs(a.mime, o.rmsprop()), (3, 1), (1, 1), (1, 1)),
    "mime-yogi-split": (_pairs(a.mime, o.yogi()), (4, 1), (1, 1), (1, 1)),
    "loc-mime": (a.mime(MOMENTUM, 0.1, state="local"), (3, 2), None, None),
    "mime_mvr": (a.mime_mvr(0.1, 0.9), (4, 3), None, (2, 2)),  # x, x_old, m, c; two gradients, y - x
    "mime_mvr-random": (a.mime_mvr(0.1, 0.9, output="random"), (4, 4), None, (2, 2)),
    "mime_mvr-current-split": (a.mime_mvr(0.1, 0.9, "current", split=True), (3, 1), (2, 2), (2, 2)),
    "mime_mvr-split": (a.mime_mvr(0.1, 0.9, split=True), (4, 1), (2, 2), (2, 2)),
    "mime_lite_mvr-split": (a.mime_lite_mvr(0.1, 0.9, split=True), (3, 1), (2, 2), (2, 2)),
    "server_only": (a.server_only(ADAM, 0.1), (1, 1), None, (1, 1)),
    "server_only_mvr": (a.server_only_mvr(0.1, 0.9), (2, 2), None, (2, 2)),
}


def _sizes(traffic) -> tuple[float, float] | None:
    return None if traffic is None else (traffic.down / MODEL, traffic.up / MODEL)


@pytest.mark.parametrize("name", EXACT)
def test_exact_costs(name: str) -> None:
    algorithm, update, gradient, prime = EXACT[name]
    found = cost(algorithm, PARAMS)
    assert found.model_bytes == MODEL
    assert (_sizes(found.update), _sizes(found.gradient), _sizes(found.prime)) == (update, gradient, prime)
    assert found.bytes == MODEL * (sum(update) + sum(gradient or ()))


@pytest.mark.parametrize("algorithm", [a.fednova(0.1), a.fedexp(0.1)], ids=["fednova", "fedexp"])
def test_a_number_beside_the_update_costs_its_bytes(algorithm) -> None:
    found = cost(algorithm, PARAMS)
    assert (found.update.down, found.update.up) == (MODEL, MODEL + 4)


def test_small_statistics_cost_little() -> None:
    """SM3 and AdaFactor send a row and a column instead of a matrix."""
    plain = cost(a.mime(o.sgd(), 0.1), PARAMS).bytes
    assert cost(a.mime(o.sm3(), 0.1), PARAMS).bytes - plain == 4 * (40 + 30 + 30)
    scalar = jax.numpy.zeros(()).nbytes  # AdaFactor also counts its gradients
    assert cost(a.mime(o.adafactor(), 0.1), PARAMS).bytes - plain == 4 * (40 + 30 + 30) + scalar
    assert cohort_for_budget(a.mime(o.adafactor(), 0.1, split=True), PARAMS, 52) == 10


def test_nothing_is_computed() -> None:
    """A model that would not fit in memory costs as much as it says."""
    giant = {"w": jax.ShapeDtypeStruct((1 << 20, 1 << 20), np.float32)}
    assert cost(a.mime(ADAM, 0.1), giant).model_sizes == 6


class State(NamedTuple):
    """The server."""

    x: Vector


@recipe
class Computing(Algorithm):
    """An algorithm whose server computes what it asks at and what it sends, as a user's own may."""

    waits: ClassVar[bool] = True

    def start(self, x: Vector) -> State:
        return State(x)

    def points(self, server: State) -> tuple[Vector, ...]:
        return (server.x.map(lambda leaf: jnp.tanh(leaf) * jnp.linalg.norm(leaf)),)

    def broadcast(self, server: State, h: tuple[Vector, ...]) -> tuple[Vector, ...]:
        return server.x, h[0].map(jnp.sign), server.x

    def local(self, message: tuple[Vector, ...], client: Client) -> Reply:
        x, sign, _ = message
        return Reply(send=client.descend(lambda y, batch: y - 0.1 * (client.grad(y, batch) + 0.1 * sign), x) - x)

    def server(self, server: State, h: tuple[Vector, ...], replies: Replies) -> State:
        return State(server.x + replies.mean)


def test_an_algorithm_may_compute_what_it_sends() -> None:
    algorithm = Computing()
    found = cost(algorithm, PARAMS)
    assert (found.update.down, found.update.up) == (3 * found.model_bytes, 2 * found.model_bytes)
    run = fm.simulate(algorithm, PROBLEM, population([3, 4]), rounds=2, cohort_size=2)
    assert np.isfinite(run.history["loss"]).all()
    assert run.history["bytes_total"][-1] == 2 * 2 * cost(algorithm, run.params).bytes


@pytest.mark.parametrize(
    "algorithm",
    [a.fedavg(falling(0.1)), a.mime(o.adagrad(falling(0.1)), falling(0.1)), a.mime_mvr(falling(0.1), falling(0.9))],
    ids=["fedavg", "mime", "mvr"],
)
def test_schedules_cost_what_numbers_cost(algorithm) -> None:
    assert cost(algorithm, PARAMS).model_sizes in (2, 5, 7)
