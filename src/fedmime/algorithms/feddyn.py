"""FedDyn: a dynamic regularizer that aligns the stationary points of every client's loss with the server's."""

from typing import NamedTuple

from fedmime.algorithms.algorithm import Client, Replies, Reply
from fedmime.algorithms.fedavg import ServerOptimized, server_options
from fedmime.hyperparameters import Number, Value, checked, number, recipe
from fedmime.optimizers import BaseOptimizer, Statistics
from fedmime.validation import POSITIVE
from fedmime.vector import Vector, zeros


class FedDynState(NamedTuple):
    """The server's state: its model, and the mean of the linear terms that clients keep."""

    x: Vector
    s: Statistics  # of the server optimizer
    h: Vector  # mean over the population of the clients' linear terms


@recipe
class FedDyn(ServerOptimized):
    """FedDyn as a recipe; `feddyn` explains its arguments. A local step is y ← y − η (∇fᵢ(y; ζ) − hᵢ + α (y − x))."""

    alpha: Value = number(POSITIVE)

    def start(self, x: Vector) -> FedDynState:
        return FedDynState(x, self.optimizer.init(x), zeros(x))

    def remember(self, x: Vector) -> Vector:
        """The linear term hᵢ of a client that was never seen: zero."""
        return zeros(x)

    def local(self, message: tuple[Vector], client: Client) -> Reply:
        (x,), h_i = message, client.kept

        def step(y, batch):
            return y - self.eta * (client.grad(y, batch) - h_i + self.alpha * (y - x))

        moved = client.descend(step, x) - x
        return Reply(send=moved, add=moved, keep=h_i - self.alpha * moved)

    def server(self, server: FedDynState, h: tuple[Vector, ...], replies: Replies) -> FedDynState:
        h_new = server.h - (self.alpha / replies.population) * replies.total
        x, s = self.follow(server.x, server.s, replies.mean - h_new / self.alpha)
        return FedDynState(x, s, h_new)


def feddyn(
    eta: Number, alpha: Number, server: BaseOptimizer | None = None, eta_server: Number = 1.0, apply: str = "lookahead"
) -> FedDyn:
    r"""FedDyn: a regularizer that each client adapts to its own gradient.

    Clients take $y \gets y - \eta(\nabla f_i(y;\zeta) - h_i + \alpha(y - x))$ and keep
    $h_i \gets h_i - \alpha (y_i - x)$; the server moves to $\sum_i w_i y_i - h/\alpha$, where h is the mean of the
    $h_i$ over the population.

    Args:
        eta: $\eta$, the clients' learning rate, or a schedule.
        alpha: $\alpha$, the strength of the regularizer, positive.
        server: as in `fedavg`; so are `eta_server` and `apply`.

    Reference: Acar et al., 2021, https://arxiv.org/abs/2111.04263
    """
    return checked(FedDyn(eta, *server_options("feddyn", server, eta_server, apply), alpha))
