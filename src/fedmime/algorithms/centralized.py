"""Centralized training on pooled data: the method that Mime mimics, and the reference of comparisons."""

from __future__ import annotations

from typing import ClassVar

from fedmime.algorithms.algorithm import Client, Replies, Reply
from fedmime.algorithms.mime import MimeState, Tracking, priming
from fedmime.hyperparameters import Number, Value, checked, number, recipe, static
from fedmime.optimizers import BaseOptimizer
from fedmime.optimizers.base import application, takes_base
from fedmime.validation import POSITIVE
from fedmime.vector import Vector


@recipe
class Centralized(Tracking):
    """Centralized training as a recipe; `centralized` explains its arguments.

    One client holds the data of everybody and runs the base optimizer mini-batch by mini-batch. It moves model and
    statistics, and the server takes over both.
    """

    eta: Value = number(POSITIVE)
    apply: str = static()
    gradient_rounds: int = static()
    pooled: ClassVar[bool] = True

    def points(self, server: MimeState) -> tuple[Vector, ...]:
        return ()

    def prime_points(self, server: MimeState) -> tuple[Vector, ...]:
        return (server.x,)

    def broadcast(self, server: MimeState, h: tuple[Vector, ...]) -> MimeState:
        return server

    def local(self, message: MimeState, client: Client) -> Reply:
        U, V = self.base.direction(self.apply), self.base.track_at

        def step(carry, batch):
            x, s = carry
            g = client.grad(x, batch)
            return x - self.eta * U(g, s, x), V(g, s, x)

        return Reply(add=client.descend(step, tuple(message)))

    def server(self, server: MimeState, h: tuple[Vector, ...], replies: Replies) -> MimeState:
        return MimeState(*replies.total)


@takes_base
def centralized(
    base: BaseOptimizer, eta: Number, apply: str | None = None, prime_rounds: int | None = None
) -> Centralized:
    r"""The base optimizer on pooled data, without clients.

    $x \gets x - \eta\,U(g, s)$ and $s \gets V(g, s)$ on i.i.d. mini-batches of the data of all clients. A round takes
    as many examples as an average cohort has.

    Args:
        base: the base optimizer.
        eta: $\eta$, the learning rate, or a schedule.
        apply: as in `mime`; a textbook optimizer is `"lookahead"`.
        prime_rounds: as in `mime`.
    """
    apply = application("centralized", base, apply)
    return checked(Centralized(base, eta, apply, priming("centralized", base, apply, prime_rounds)))
