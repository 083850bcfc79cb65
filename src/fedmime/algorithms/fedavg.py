"""FedAvg with any server optimizer: clients run SGD or another optimizer, the server steps along their mean movement.

`ServerOptimized` is the base of all algorithms of this kind: FedAvg, FedProx, SCAFFOLD, FedDyn and others.
"""

from __future__ import annotations

import abc
from typing import NamedTuple

from fedmime.algorithms.algorithm import Algorithm, Client, Replies, Reply
from fedmime.hyperparameters import Number, Value, checked, number, recipe, static
from fedmime.optimizers import BaseOptimizer, Statistics, sgd
from fedmime.optimizers.base import application, base_optimizer
from fedmime.validation import POSITIVE
from fedmime.vector import Vector


class FedAvgState(NamedTuple):
    """The server's state in algorithms whose clients only send their movement."""

    x: Vector  # server model
    s: Statistics  # of the server optimizer; clients never see it


@recipe
class ServerOptimized(Algorithm):
    """Algorithms that hand the cohort's mean movement Σ wᵢ (yᵢ − x) to a server optimizer, as a pseudo-gradient.

    Attributes:
        eta: η, the clients' learning rate.
        optimizer: the server optimizer.
        eta_server: the server's learning rate.
        apply: how the server optimizer is applied, `"lookahead"` or `"frozen"`.
    """

    eta: Value = number(POSITIVE)
    optimizer: BaseOptimizer
    eta_server: Value = number(POSITIVE)
    apply: str = static()

    def start(self, x: Vector) -> FedAvgState:
        return FedAvgState(x, self.optimizer.init(x))

    def follow(self, x: Vector, s: Statistics, movement: Vector) -> tuple[Vector, Statistics]:
        """One step of the server optimizer.

        Args:
            x: the server model.
            s: statistics of the server optimizer.
            movement: the mean movement of the clients; the pseudo-gradient is −movement.

        Returns:
            The new model and statistics.
        """
        U, V = self.optimizer.direction(self.apply), self.optimizer.track_at
        return x - self.eta_server * U(-movement, s, x), V(-movement, s, x)

    def server(self, server: FedAvgState, h: tuple[Vector, ...], replies: Replies) -> FedAvgState:
        return FedAvgState(*self.follow(server.x, server.s, replies.mean))

    @abc.abstractmethod
    def local(self, message: tuple[Vector, ...], client: Client) -> Reply: ...


@recipe
class FedAvg(ServerOptimized):
    """FedAvg as a recipe; `fedavg` explains its arguments. A local step is y ← y − η ∇fᵢ(y; ζ)."""

    def local(self, message: tuple[Vector], client: Client) -> Reply:
        (x,) = message

        def step(y, batch):
            return y - self.eta * client.grad(y, batch)

        return Reply(send=client.descend(step, x) - x)


@recipe
class LocalFedAvg(ServerOptimized):
    """FedAvg whose clients run an optimizer of their own; `fedavg` explains its arguments.

    A local step is y ← y − η U(∇fᵢ(y; ζ), sᵢ) of the whole optimizer, statistics first and step after. The statistics
    sᵢ begin anew in every round.
    """

    client: BaseOptimizer

    def local(self, message: tuple[Vector], client: Client) -> Reply:
        (x,) = message
        U, V = self.client.ahead, self.client.track_at

        def step(carry, batch):
            y, s_i = carry
            g = client.grad(y, batch)
            return y - self.eta * U(g, s_i, y), V(g, s_i, y)

        return Reply(send=client.descend(step, (x, self.client.init(x)))[0] - x)


def fedavg(
    eta: Number,
    server: BaseOptimizer | None = None,
    eta_server: Number = 1.0,
    apply: str = "lookahead",
    client: BaseOptimizer | None = None,
) -> FedAvg | LocalFedAvg:
    r"""Federated averaging; with a `server` optimizer other than SGD this is FedOpt.

    Clients run SGD, or the optimizer `client`, with rate $\eta$; the server takes
    $x \gets x - \eta_s\,U(\Delta, s)$ on the pseudo-gradient $\Delta = x - \sum_i w_i y_i$.

    Args:
        eta: $\eta$, the clients' learning rate, or a schedule.
        server: the server optimizer; SGD by default.
        eta_server: $\eta_s$, the server's learning rate, or a schedule.
        apply: `"lookahead"` runs the server optimizer as a whole, statistics first and step after, as FedOpt does;
            `"frozen"` steps with the statistics of earlier rounds only.
        client: the clients' optimizer, such as `momentum` or `adamw`; each client runs it from a fresh state in every
            round. SGD by default.

    References: McMahan et al., 2017, https://arxiv.org/abs/1602.05629; Reddi et al., 2021,
    https://arxiv.org/abs/2003.00295
    """
    options = server_options("fedavg", server, eta_server, apply)
    if client is None:
        return checked(FedAvg(eta, *options))
    return checked(LocalFedAvg(eta, *options, base_optimizer("fedavg", "client", client)), "fedavg")


def server_options(
    owner: str, server: BaseOptimizer | None, eta_server: Number, apply: str
) -> tuple[BaseOptimizer, Number, str]:
    """Check the arguments that all server-optimized algorithms share.

    Args:
        owner: name of the factory, for messages.

    Returns:
        The server optimizer (SGD for None), its rate, and how it is applied: the last fields of these recipes.
    """
    optimizer = base_optimizer(owner, "server", sgd() if server is None else server)
    return optimizer, eta_server, application(owner, optimizer, apply)
