"""FedProx: FedAvg whose clients are held back by a spring to the server model."""

from fedmime.algorithms.algorithm import Client, Reply
from fedmime.algorithms.fedavg import ServerOptimized, server_options
from fedmime.numbers import NON_NEGATIVE, POSITIVE, Number, Value, checked, number, recipe, static
from fedmime.optimizers import BaseOptimizer
from fedmime.vector import Vector


@recipe
class FedProx(ServerOptimized):
    """y ← y − η (∇fᵢ(y; ζ) + μ (y − x))."""

    eta: Value = number(POSITIVE)
    mu: Value = number(NON_NEGATIVE)
    optimizer: BaseOptimizer
    eta_server: Value = number(POSITIVE)
    apply: str = static()

    def local(self, message: tuple[Vector], client: Client) -> Reply:
        (x,) = message

        def step(y, batch):
            return y - self.eta * (client.grad(y, batch) + self.mu * (y - x))

        return Reply(send=client.descend(step, x) - x)


def fedprox(
    eta: Number, mu: Number, server: BaseOptimizer | None = None, eta_server: Number = 1.0, apply: str = "lookahead"
) -> FedProx:
    r"""FedAvg with $\frac{\mu}{2}\|y - x\|^2$ added to every local loss.

    Reference: Li et al., 2020, https://arxiv.org/abs/1812.06127
    """
    return checked(FedProx(eta, mu, *server_options("fedprox", server, eta_server, apply)))
