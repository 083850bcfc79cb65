"""FedNova: clients count by their directions, whatever their numbers of local steps."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fedmime.algorithms.algorithm import Client, Replies, Reply
from fedmime.algorithms.fedavg import FedAvgState, ServerOptimized, server_options
from fedmime.errors import ConfigError
from fedmime.hyperparameters import Number, Value, checked, number, recipe
from fedmime.optimizers import BaseOptimizer, sgd
from fedmime.optimizers.base import base_optimizer
from fedmime.optimizers.momentum import Momentum
from fedmime.optimizers.sgd import SGD
from fedmime.validation import NON_NEGATIVE, quote
from fedmime.vector import Vector


@recipe
class FedNova(ServerOptimized):
    """FedNova as a recipe; `fednova` explains its arguments.

    The movement of a client is x − yᵢ = η Σₖ aᵢₖ ∇fᵢ(yₖ; ζₖ) with weights aᵢₖ that its optimizer determines.
    """

    mu: Value = number(NON_NEGATIVE)
    client: BaseOptimizer

    def local(self, message: tuple[Vector], client: Client) -> Reply:
        (x,) = message
        U, V = self.client.ahead, self.client.track_at
        zero = Vector(jnp.zeros((), jax.tree.leaves(x)[0].dtype))

        def step(carry, batch):
            y, s, a, r = carry
            g = client.grad(y, batch) + self.mu * (y - x)
            # The sum of the weights is the movement, in units of −η, that gradients of one would lead to.
            one = 1 - self.mu * self.eta * a
            return y - self.eta * U(g, s, y), V(g, s, y), a + U(one, r, a), V(one, r, a)

        start = x, self.client.init(x), zero, self.client.init(zero)
        y, _, a, _ = client.descend(step, start)
        progress = self.eta * a.tree  # η ‖aᵢ‖₁
        return Reply(send=((y - x) / progress, progress))

    def server(self, server: FedAvgState, h: tuple[Vector, ...], replies: Replies) -> FedAvgState:
        direction, progress = replies.mean
        return FedAvgState(*self.follow(server.x, server.s, progress * direction))


def fednova(
    eta: Number,
    mu: Number = 0.0,
    client: BaseOptimizer | None = None,
    server: BaseOptimizer | None = None,
    eta_server: Number = 1.0,
    apply: str = "lookahead",
) -> FedNova:
    r"""FedNova: normalized averaging, for clients that take different numbers of local steps.

    A client's movement is $x - y_i = \eta\sum_k a_{ik} g_{ik}$, and it sends $d_i = (x - y_i)/(\eta\|a_i\|_1)$, a mean
    of its gradients, and the number $\|a_i\|_1$. The server takes
    $x \gets x - \eta_s\,\eta\,\tau \sum_i w_i d_i$ with $\tau = \sum_i w_i \|a_i\|_1$. For SGD $\|a_i\|_1$ is the
    number of steps. Clients with more steps move the mean no more than others, so that it does not lean towards their
    optima.

    Args:
        eta: $\eta$, the clients' learning rate, or a schedule.
        mu: $\mu$, the strength of the penalty of `fedprox`; the weights are positive for $\eta\mu \le 1$.
        client: the clients' optimizer, from a fresh state every round: SGD by default, or `momentum`. The weights of
            others depend on the gradients.
        server: as in `fedavg`; so are `eta_server` and `apply`.

    Reference: Wang et al., 2020, https://arxiv.org/abs/2007.07481
    """
    inner = base_optimizer("fednova", "client", sgd() if client is None else client)
    if type(inner) not in (SGD, Momentum):
        words = "fm.optimizers.sgd() or momentum(…), whose weights of gradients are known"
        raise ConfigError(f"fednova: client must be {words}, got {quote(inner)}")
    return checked(FedNova(eta, *server_options("fednova", server, eta_server, apply), mu, inner))
