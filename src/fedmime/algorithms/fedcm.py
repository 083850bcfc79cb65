"""FedCM: every local step follows the last round's mean direction as well."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from fedmime.algorithms.algorithm import Client, Replies, Reply
from fedmime.algorithms.fedavg import ServerOptimized, server_options
from fedmime.hyperparameters import Number, Value, checked, number, recipe
from fedmime.optimizers import BaseOptimizer, Statistics
from fedmime.validation import SHARE
from fedmime.vector import Vector, zeros


class FedCMState(NamedTuple):
    """The server's state: its model and the momentum that clients follow."""

    x: Vector
    s: Statistics  # of the server optimizer
    m: Vector  # Δ, the last round's mean direction of a local step


@recipe
class FedCM(ServerOptimized):
    """FedCM as a recipe; `fedcm` explains its arguments. A local step is y ← y − η (α ∇fᵢ(y; ζ) + (1 − α) Δ)."""

    counts_steps: ClassVar[bool] = True

    alpha: Value = number(SHARE)

    def start(self, x: Vector) -> FedCMState:
        return FedCMState(x, self.optimizer.init(x), zeros(x))

    def broadcast(self, server: FedCMState, h: tuple[Vector, ...]) -> tuple[Vector, Vector]:
        return server.x, server.m

    def local(self, message: tuple[Vector, Vector], client: Client) -> Reply:
        x, m = message

        def step(y, batch):
            return y - self.eta * (self.alpha * client.grad(y, batch) + (1 - self.alpha) * m)

        return Reply(send=client.descend(step, x) - x)

    def server(self, server: FedCMState, h: tuple[Vector, ...], replies: Replies) -> FedCMState:
        x, s = self.follow(server.x, server.s, replies.mean)
        return FedCMState(x, s, replies.mean / (-self.eta * replies.mean_steps))


def fedcm(
    eta: Number,
    alpha: Number = 0.1,
    server: BaseOptimizer | None = None,
    eta_server: Number = 1.0,
    apply: str = "lookahead",
) -> FedCM:
    r"""FedCM: client-level momentum, which every local step follows.

    Clients take $y \gets y - \eta(\alpha \nabla f_i(y;\zeta) + (1-\alpha)\Delta)$, where
    $\Delta \gets \sum_i w_i (x - y_i) / (\eta K)$ is the mean direction of the last round's local steps, zero at first.
    K is the clients' mean number of local steps, weighted as they are.

    Args:
        eta: $\eta$, the clients' learning rate, or a schedule.
        alpha: $\alpha$ in (0, 1], the weight of the client's own gradient; 1 gives FedAvg.
        server: as in `fedavg`; so are `eta_server` and `apply`.

    Reference: Xu et al., 2021, https://arxiv.org/abs/2106.10874
    """
    return checked(FedCM(eta, *server_options("fedcm", server, eta_server, apply), alpha))
