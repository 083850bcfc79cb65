"""FedVARP: the last movement of every client stands in for those who are not in the cohort."""

from __future__ import annotations

from typing import NamedTuple

from fedmime.algorithms.algorithm import Client, Replies, Reply
from fedmime.algorithms.fedavg import ServerOptimized, server_options
from fedmime.hyperparameters import Number, checked, recipe
from fedmime.optimizers import BaseOptimizer, Statistics
from fedmime.vector import Vector, zeros


class FedVARPState(NamedTuple):
    """The server's state: its model, and the mean of the last movements of all clients."""

    x: Vector
    s: Statistics  # of the server optimizer
    u: Vector  # mean over the population of the movements u_i when each was last seen


@recipe
class FedVARP(ServerOptimized):
    """FedVARP as a recipe; `fedvarp` explains its arguments. A local step is y ← y − η ∇fᵢ(y; ζ)."""

    def start(self, x: Vector) -> FedVARPState:
        return FedVARPState(x, self.optimizer.init(x), zeros(x))

    def remember(self, x: Vector) -> Vector:
        """The last movement uᵢ of a client that was never seen: zero."""
        return zeros(x)

    def local(self, message: tuple[Vector], client: Client) -> Reply:
        (x,), u_i = message, client.kept

        def step(y, batch):
            return y - self.eta * client.grad(y, batch)

        moved = client.descend(step, x) - x
        change = moved - u_i
        return Reply(send=change, add=change, keep=moved)

    def server(self, server: FedVARPState, h: tuple[Vector, ...], replies: Replies) -> FedVARPState:
        x, s = self.follow(server.x, server.s, replies.mean + server.u)
        return FedVARPState(x, s, server.u + replies.total / replies.population)


def fedvarp(
    eta: Number, server: BaseOptimizer | None = None, eta_server: Number = 1.0, apply: str = "lookahead"
) -> FedVARP:
    r"""FedVARP: variance reduction for partial participation, by the last movement of every client.

    Clients run SGD. With the movement $\Delta_i = y_i - x$ of a client and $u_i$ the one of the last round in which it
    took part, zero if there was none, the server takes
    $x \gets x + \eta_s\bigl(\sum_i w_i(\Delta_i - u_i) + \frac1N\sum_j u_j\bigr)$, and then $u_i \gets \Delta_i$ for
    the clients of the cohort. Each client keeps its own $u_i$ and sends the change, so that the server keeps only the
    mean. With equal weights, and if everybody takes part, this is FedAvg.

    Args:
        eta: $\eta$, the clients' learning rate, or a schedule.
        server: as in `fedavg`; so are `eta_server` and `apply`.

    Reference: Jhunjhunwala et al., 2022, https://arxiv.org/abs/2207.14130
    """
    return checked(FedVARP(eta, *server_options("fedvarp", server, eta_server, apply)))
