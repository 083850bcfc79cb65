"""GHBM: heavy-ball momentum over the last τ rounds, added to every local step."""

from __future__ import annotations

from typing import NamedTuple

from fedmime.algorithms.algorithm import Client, Replies, Reply
from fedmime.algorithms.fedavg import ServerOptimized, server_options
from fedmime.hyperparameters import Number, Value, checked, number, recipe, static
from fedmime.optimizers import BaseOptimizer, Statistics
from fedmime.validation import UNIT, count
from fedmime.vector import Vector


class GHBMState(NamedTuple):
    """The server before round t."""

    x: Vector  # x^{t-1}
    s: Statistics  # of the server optimizer
    past: tuple[Vector, ...]  # x^{t-2}, …, x^{t-1-τ}; the first model where there was none yet


@recipe
class GHBM(ServerOptimized):
    """GHBM as a recipe; `ghbm` explains its arguments. A local step is y ← y − η ∇fᵢ(y; ζ) + (β / Kᵢ) m."""

    beta: Value = number(UNIT)
    tau: int = static()

    def start(self, x: Vector) -> GHBMState:
        return GHBMState(x, self.optimizer.init(x), (x,) * self.tau)

    def broadcast(self, server: GHBMState, h: tuple[Vector, ...]) -> tuple[Vector, Vector]:
        return server.x, (server.x - server.past[-1]) / self.tau

    def local(self, message: tuple[Vector, Vector], client: Client) -> Reply:
        x, m = message

        def step(y, batch):
            return y - self.eta * client.grad(y, batch) + (self.beta / client.steps) * m

        return Reply(send=client.descend(step, x) - x)

    def server(self, server: GHBMState, h: tuple[Vector, ...], replies: Replies) -> GHBMState:
        x, s = self.follow(server.x, server.s, replies.mean)
        return GHBMState(x, s, (server.x, *server.past[:-1]))


def ghbm(
    eta: Number,
    beta: Number = 0.9,
    tau: int = 10,
    server: BaseOptimizer | None = None,
    eta_server: Number = 1.0,
    apply: str = "lookahead",
) -> GHBM:
    r"""GHBM: generalized heavy-ball momentum, by which the movement of several rounds helps every local step.

    Clients take $y \gets y - \eta \nabla f_i(y;\zeta) + \frac{\beta}{K_i} m$ with
    $m = (x^{t-1} - x^{t-1-\tau})/\tau$, so that momentum moves each of them by $\beta m$ in a round, whatever its
    number $K_i$ of local steps. Rounds before the first one count as standing still. The server keeps $\tau$ models.

    Args:
        eta: $\eta$, the clients' learning rate, or a schedule.
        beta: $\beta$ in [0, 1), the weight of the momentum; 0 gives FedAvg.
        tau: $\tau$, over how many rounds the movement is averaged. About as many as it takes until everybody was seen,
            the clients over the cohort, remove the bias towards the last cohort; 1 is heavy-ball momentum.
        server: as in `fedavg`; so are `eta_server` and `apply`.

    Reference: Zaccone et al., 2023, https://arxiv.org/abs/2311.18578
    """
    rounds = count("ghbm", "tau", tau, least=1)
    return checked(GHBM(eta, *server_options("ghbm", server, eta_server, apply), beta, rounds))
