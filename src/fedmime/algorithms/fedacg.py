"""FedACG: clients start where the server's momentum is about to lead."""

from __future__ import annotations

from typing import NamedTuple

from fedmime.algorithms.algorithm import Algorithm, Client, Replies, Reply
from fedmime.hyperparameters import Number, Value, checked, number, recipe
from fedmime.validation import NON_NEGATIVE, POSITIVE, UNIT
from fedmime.vector import Vector, zeros


class FedACGState(NamedTuple):
    """The server's state: its model and its momentum."""

    x: Vector
    m: Vector


@recipe
class FedACG(Algorithm):
    """FedACG as a recipe; `fedacg` explains its arguments. A local step is y ← y − η (∇fᵢ(y; ζ) + μ (y − z))."""

    eta: Value = number(POSITIVE)
    beta: Value = number(UNIT)
    mu: Value = number(NON_NEGATIVE)

    def start(self, x: Vector) -> FedACGState:
        return FedACGState(x, zeros(x))

    def broadcast(self, server: FedACGState, h: tuple[Vector, ...]) -> tuple[Vector]:
        return (server.x + self.beta * server.m,)

    def local(self, message: tuple[Vector], client: Client) -> Reply:
        (z,) = message

        def step(y, batch):
            return y - self.eta * (client.grad(y, batch) + self.mu * (y - z))

        return Reply(send=client.descend(step, z) - z)

    def server(self, server: FedACGState, h: tuple[Vector, ...], replies: Replies) -> FedACGState:
        m = self.beta * server.m + replies.mean
        return FedACGState(server.x + m, m)


def fedacg(eta: Number, beta: Number = 0.85, mu: Number = 0.0) -> FedACG:
    r"""FedACG: an accelerated client gradient at the price of FedAvg's messages.

    The server sends the point $z = x + \beta m$ that its momentum m leads to. Clients start there and take
    $y \gets y - \eta(\nabla f_i(y;\zeta) + \mu(y - z))$; the server takes $m \gets \beta m + \sum_i w_i (y_i - z)$ and
    $x \gets x + m$.

    Args:
        eta: $\eta$, the clients' learning rate, or a schedule.
        beta: $\beta$ in [0, 1), the server's momentum, the paper's $\lambda$; 0 gives FedAvg.
        mu: $\mu$, the strength of a penalty on the distance from z, the paper's $\beta$.

    Reference: Kim et al., 2022, https://arxiv.org/abs/2201.03172
    """
    return checked(FedACG(eta, beta, mu))
