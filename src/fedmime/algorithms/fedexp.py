"""FedExP: a server rate that grows with the diversity of the clients' movements."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedmime.algorithms.algorithm import Algorithm, Client, Replies, Reply
from fedmime.hyperparameters import Number, Value, checked, number, recipe
from fedmime.validation import POSITIVE, Range
from fedmime.vector import Vector, dot

CAP = Range(lambda v: v >= 1, "be at least 1, or math.inf", infinite=True)


class FedExPState(NamedTuple):
    """The server's state."""

    x: Vector
    x_old: Vector  # the model before the last round
    rate: jax.Array  # the server's rate in the last round


@recipe
class FedExP(Algorithm):
    """FedExP as a recipe; `fedexp` explains its arguments. A local step is y ← y − η ∇fᵢ(y; ζ)."""

    eta: Value = number(POSITIVE)
    eps: Value = number(POSITIVE)
    cap: Value = number(CAP)

    def start(self, x: Vector) -> FedExPState:
        return FedExPState(x, x, jnp.ones((), jax.tree.leaves(x)[0].dtype))

    def local(self, message: tuple[Vector], client: Client) -> Reply:
        (x,) = message

        def step(y, batch):
            return y - self.eta * client.grad(y, batch)

        moved = client.descend(step, x) - x
        return Reply(send=(moved, dot(moved, moved)))

    def server(self, server: FedExPState, h: tuple[Vector, ...], replies: Replies) -> FedExPState:
        moved, squares = replies.mean
        rate = jnp.clip(squares / (2 * (dot(moved, moved) + self.eps)), 1, self.cap)
        return FedExPState(server.x + rate * moved, server.x, rate.astype(server.rate.dtype))


def fedexp(eta: Number, eps: Number = 1e-3, cap: Number = math.inf) -> FedExP:
    r"""FedExP: FedAvg with a server rate that is chosen in every round.

    With the movements $\Delta_i = y_i - x$ of clients that run SGD, the server takes
    $x \gets x + \eta_s \sum_i w_i \Delta_i$ with
    $\eta_s = \max(1, \sum_i w_i \|\Delta_i\|^2 / (2(\|\sum_i w_i \Delta_i\|^2 + \epsilon)))$. The less clients agree,
    the larger it is. Models may oscillate; the authors report the mean of the last two, which are `x` and `x_old` of
    `state.server`.

    Args:
        eta: $\eta$, the clients' learning rate, or a schedule.
        eps: $\epsilon$, positive, which keeps the rate small where the mean movement is.
        cap: the largest $\eta_s$, at least 1; by default there is none, and with 1 this is FedAvg.

    Reference: Jhunjhunwala et al., 2023, https://arxiv.org/abs/2301.09604
    """
    return checked(FedExP(eta, eps, cap))
