"""SCAFFOLD: control variates that clients keep between the rounds they take part in."""

from typing import NamedTuple

from fedmime.algorithms.algorithm import Client, Replies, Reply
from fedmime.algorithms.fedavg import ServerOptimized, server_options
from fedmime.hyperparameters import Number, checked, recipe
from fedmime.optimizers import BaseOptimizer, Statistics
from fedmime.vector import Vector, zeros


class ScaffoldState(NamedTuple):
    """The server's state: its model and its control variate."""

    x: Vector
    s: Statistics  # of the server optimizer
    c: Vector  # mean of the c_i over the population


@recipe
class Scaffold(ServerOptimized):
    """SCAFFOLD as a recipe; `scaffold` explains its arguments. A local step is y ← y − η (∇fᵢ(y; ζ) − cᵢ + c)."""

    def start(self, x: Vector) -> ScaffoldState:
        return ScaffoldState(x, self.optimizer.init(x), zeros(x))

    def remember(self, x: Vector) -> Vector:
        """The control variate cᵢ of a client that was never seen: zero."""
        return zeros(x)

    def broadcast(self, server: ScaffoldState, h: tuple[Vector, ...]) -> tuple[Vector, Vector]:
        return server.x, server.c

    def local(self, message: tuple[Vector, Vector], client: Client) -> Reply:
        (x, c), c_i = message, client.kept

        def step(y, batch):
            return y - self.eta * (client.grad(y, batch) - c_i + c)

        y = client.descend(step, x)
        c_new = c_i - c + (x - y) / (client.steps * self.eta)
        return Reply(send=y - x, add=c_new - c_i, keep=c_new)

    def server(self, server: ScaffoldState, h: tuple[Vector, ...], replies: Replies) -> ScaffoldState:
        x, s = self.follow(server.x, server.s, replies.mean)
        return ScaffoldState(x, s, server.c + replies.total / replies.population)


def scaffold(
    eta: Number, server: BaseOptimizer | None = None, eta_server: Number = 1.0, apply: str = "lookahead"
) -> Scaffold:
    r"""SCAFFOLD with option II: control variates correct the drift of local steps.

    Clients take $y \gets y - \eta(\nabla f_i(y;\zeta) - c_i + c)$ and keep $c_i^+ = c_i - c + (x - y_i)/(K\eta)$; the
    server moves $c \gets c + \frac1N\sum_i (c_i^+ - c_i)$. The variates help only if clients are seen again; a client
    that was never seen has $c_i = 0$.

    Args:
        eta: $\eta$, the clients' learning rate, or a schedule.
        server: as in `fedavg`; so are `eta_server` and `apply`.

    Reference: Karimireddy et al., 2020, https://arxiv.org/abs/1910.06378
    """
    return checked(Scaffold(eta, *server_options("scaffold", server, eta_server, apply)))
