"""DiLoCo: AdamW on the clients, Nesterov's momentum on the server."""

from __future__ import annotations

from fedmime.algorithms.fedavg import LocalFedAvg
from fedmime.hyperparameters import Number, checked
from fedmime.optimizers import BaseOptimizer, adamw
from fedmime.optimizers.base import base_optimizer
from fedmime.optimizers.nesterov import Nesterov


def diloco(
    eta: Number, beta: Number = 0.9, eta_server: Number = 0.7, client: BaseOptimizer | None = None
) -> LocalFedAvg:
    r"""DiLoCo: an inner optimizer on the clients, Nesterov's momentum as the outer one.

    It is `fedavg` with two optimizers: clients run AdamW with rate $\eta$, and the server takes Nesterov's momentum of
    the pseudo-gradients $\Delta = x - \sum_i w_i y_i$, that is $m \gets \Delta + \beta m$ and
    $x \gets x - \eta_s(\Delta + \beta m)$. Few clients that take hundreds of steps between rounds are its place.

    A client starts every round with fresh inner statistics, so that it may be stateless; the authors' workers, who take
    part in every round, keep theirs.

    Args:
        eta: $\eta$, the rate of the inner optimizer, or a schedule.
        beta: $\beta$, the momentum of the outer optimizer.
        eta_server: $\eta_s$, the rate of the outer optimizer, or a schedule.
        client: the inner optimizer; by default AdamW with a weight decay of 0.1. With SGD this is FedOpt.

    Reference: Douillard et al., 2023, https://arxiv.org/abs/2311.08105
    """
    inner = base_optimizer("diloco", "client", adamw(weight_decay=0.1) if client is None else client)
    return checked(LocalFedAvg(eta, Nesterov(beta), eta_server, "lookahead", inner), "diloco")
