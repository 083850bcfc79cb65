"""Server-only methods: the cohort sends full gradients, and nobody takes local steps.

They are the baselines that show what local steps gain.
"""

from __future__ import annotations

from typing import ClassVar

from fedmime.algorithms.algorithm import Replies
from fedmime.algorithms.mime import MimeState, Tracking, priming
from fedmime.algorithms.mvr import MVR, MVRState
from fedmime.hyperparameters import Number, Value, checked, number, recipe, static
from fedmime.optimizers import BaseOptimizer
from fedmime.optimizers.base import application, takes_base
from fedmime.validation import POSITIVE, count
from fedmime.vector import Vector


@recipe
class ServerOnly(Tracking):
    """The base optimizer on the server as a recipe: x ← x − η U(c, s), s ← V(c, s); see `server_only`."""

    eta: Value = number(POSITIVE)
    apply: str = static()
    gradient_rounds: int = static()
    local_steps: ClassVar[bool] = False

    def server(self, server: MimeState, h: tuple[Vector, ...], replies: Replies) -> MimeState:
        (c,), (x, s) = h, server
        return MimeState(x - self.eta * self.base.direction(self.apply)(c, s, x), self.track(server, h))


@recipe
class ServerOnlyMVR(MVR):
    """Momentum-based variance reduction on the server as a recipe: x ← x − η mᵗ; see `server_only_mvr`."""

    gradient_rounds: int = static()
    local_steps: ClassVar[bool] = False

    def server(self, server: MVRState, h: tuple[Vector, Vector], replies: Replies) -> MVRState:
        m = self.momentum(server, h)
        return server._replace(x=server.x - self.eta * m, x_old=server.x, m=m)


@takes_base
def server_only(
    base: BaseOptimizer, eta: Number, apply: str | None = None, prime_rounds: int | None = None
) -> ServerOnly:
    r"""The base optimizer on the cohort's mean full gradient, without local steps.

    $x \gets x - \eta\,U(c, s)$ with the mean $c$ of the clients' gradients at x, then $s \gets V(c, s)$.

    Args:
        base: the base optimizer.
        eta: $\eta$, the learning rate, or a schedule.
        apply: as in `mime`.
        prime_rounds: as in `mime`.
    """
    apply = application("server_only", base, apply)
    return checked(ServerOnly(base, eta, apply, priming("server_only", base, apply, prime_rounds)))


def server_only_mvr(eta: Number, beta: Number, init_rounds: int = 1) -> ServerOnlyMVR:
    r"""Momentum-based variance reduction (STORM) without local steps.

    $x \gets x - \eta\,m^t$ with the momentum $m^t$ of `mime_mvr`.

    Args:
        eta: $\eta$, the learning rate, or a schedule.
        beta: $\beta$ in [0, 1), the weight of earlier gradients in the momentum.
        init_rounds: gradient-only rounds (`Algorithm.gradient_rounds`) whose mean gradient becomes $m^0$.

    Reference: Cutkosky and Orabona, 2019, https://arxiv.org/abs/1905.10018
    """
    return checked(ServerOnlyMVR(eta, beta, count("server_only_mvr", "init_rounds", init_rounds)))
