"""What algorithms of a user's own may carry through the local steps and answer."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedmime as fm
from engine.setting import PROBLEM, close, columns, model
from fedmime import backends
from fedmime.algorithms import Algorithm, Client, Replies, Reply
from fedmime.algorithms.abstract import anchor_of
from fedmime.engine.round import play
from fedmime.engine.work import work_of
from fedmime.hyperparameters import Value, checked, number, recipe, static
from fedmime.validation import POSITIVE
from fedmime.vector import Vector, zeros

ETA = 0.1


class Heavy(NamedTuple):
    """A carry with names."""

    y: Vector
    m: Vector


class State(NamedTuple):
    """The server."""

    x: Vector
    clients: Any


@recipe
class HeavyBall(Algorithm):
    """Local momentum; the server counts its clients."""

    kind: str = static()
    eta: Value = number(POSITIVE)

    def start(self, x: Vector) -> State:
        return State(x, jnp.zeros(()))

    def local(self, message: Any, client: Client) -> Reply:
        (x,) = message

        def step(carry: Any, batch: Any) -> Any:
            y, m = carry
            m = 0.5 * m + client.grad(y, batch)
            return make(y - self.eta * m, m)

        make = {"named": Heavy, "list": lambda *parts: list(parts), "tuple": lambda *parts: parts}[self.kind]
        carry = client.descend(step, make(x, zeros(x)))
        assert type(carry) is type(make(x, x))
        return Reply(send=carry[0] - x, add=1.0)

    def server(self, server: State, h: Any, replies: Replies) -> State:
        return State(server.x + replies.mean, server.clients + replies.total)


def _cohort(*spoilt: int) -> fm.Cohort:
    rng = np.random.default_rng(0)
    clients = [{name: column[None] for name, column in columns(rng, 4).items()} for _ in range(3)]
    for i in spoilt:
        clients[i]["x"] = clients[i]["x"] * 1e200
    return fm.Cohort.from_batches(clients)


@pytest.mark.parametrize("kind", ["named", "list"])
def test_carries_keep_their_kind_and_replies_may_be_numbers(kind: str) -> None:
    states = [
        fm.run_round(algorithm, PROBLEM, algorithm.init(model()), _cohort())[0]
        for algorithm in (checked(HeavyBall(kind, ETA)), checked(HeavyBall("tuple", ETA)))
    ]
    assert states[0].server.clients == 3
    close(fm.params(states[0]), fm.params(states[1]))


@recipe
class Peeking(HeavyBall):
    """Looks at what is drawn for the server, and says so or not."""

    kind: str = static()
    eta: Value = number(POSITIVE)
    draws: bool = static()

    def local(self, message: Any, client: Client) -> Reply:
        return Reply(send=zeros(message[0]), add=client.pick)

    def server(self, server: State, h: Any, replies: Replies) -> State:
        return server._replace(clients=replies.total + replies.coin)


def test_what_is_drawn_has_to_be_asked_for() -> None:
    algorithm = checked(Peeking("tuple", ETA, True))
    state, _ = fm.run_round(algorithm, PROBLEM, algorithm.init(model()), _cohort())
    assert -2 <= state.server.clients < -1  # of three clients with a step each one has a pick of 0; and the coin
    silent = checked(Peeking("tuple", ETA, False))
    with pytest.raises(fm.ConfigError, match="draws = True"):
        fm.run_round(silent, PROBLEM, silent.init(model()), _cohort())


def test_a_reply_without_bounds_is_refused_even_where_the_bound_is_infinite() -> None:
    algorithm = fm.algorithms.fedavg(ETA)
    state = algorithm.init(model())
    work = work_of(algorithm, anchor_of(algorithm, state.server), 0, _cohort(1), jax.random.key(0))
    _, info = play(backends.local().start(PROBLEM, model()), work, state, largest=float("inf"))
    assert info.refused == (1,)
    assert not info.abandoned
