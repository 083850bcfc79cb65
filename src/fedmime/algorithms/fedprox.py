"""FedProx: FedAvg with a penalty on the distance of a client from the server model."""

from fedmime.algorithms.algorithm import Client, Reply
from fedmime.algorithms.fedavg import ServerOptimized, server_options
from fedmime.hyperparameters import Number, Value, checked, number, recipe
from fedmime.optimizers import BaseOptimizer
from fedmime.validation import NON_NEGATIVE
from fedmime.vector import Vector


@recipe
class FedProx(ServerOptimized):
    """FedProx as a recipe; `fedprox` explains its arguments. A local step is y ← y − η (∇fᵢ(y; ζ) + μ (y − x))."""

    mu: Value = number(NON_NEGATIVE)

    def local(self, message: tuple[Vector], client: Client) -> Reply:
        (x,) = message

        def step(y, batch):
            return y - self.eta * (client.grad(y, batch) + self.mu * (y - x))

        return Reply(send=client.descend(step, x) - x)


def fedprox(
    eta: Number, mu: Number, server: BaseOptimizer | None = None, eta_server: Number = 1.0, apply: str = "lookahead"
) -> FedProx:
    r"""FedProx: FedAvg with a penalty on the distance of a client from the server model.

    The penalty $\frac{\mu}{2}\|y - x\|^2$ is added to every local loss, so that a local step is
    $y \gets y - \eta(\nabla f_i(y;\zeta) + \mu(y - x))$.

    Args:
        eta: $\eta$, the clients' learning rate, or a schedule.
        mu: $\mu$, the strength of the penalty; 0 gives FedAvg.
        server: as in `fedavg`; so are `eta_server` and `apply`.

    Reference: Li et al., 2020, https://arxiv.org/abs/1812.06127
    """
    return checked(FedProx(eta, *server_options("fedprox", server, eta_server, apply), mu))
