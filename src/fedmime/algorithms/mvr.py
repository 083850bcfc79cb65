"""Mime with momentum-based variance reduction: the variants that beat every method without local steps."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp

from fedmime.algorithms.algorithm import Algorithm, Client, Replies, Reply
from fedmime.hyperparameters import Number, Value, checked, number, recipe, static
from fedmime.validation import POSITIVE, UNIT, choice, count, flag
from fedmime.vector import Vector, norm, where, zeros


class MVRState(NamedTuple):
    """The server before round t; the last two are None unless a random iterate is wanted."""

    x: Vector  # x^{t-1}
    x_old: Vector  # x^{t-2}
    m: Vector  # m^{t-1}
    drawn: Any  # an iterate y drawn uniformly from all clients and steps so far
    seen: Any  # how many iterates it was drawn from


class MVRMessage(NamedTuple):
    """What a client is sent before it trains; None where a variant does without."""

    x: Vector
    x_old: Vector | None
    m: Vector
    c: Vector | None


@recipe
class MVR(Algorithm):
    """What all variants share: m tracks the gradient with its own past corrected."""

    eta: Value = number(POSITIVE)
    beta: Value = number(UNIT)

    def start(self, x: Vector) -> MVRState:
        return MVRState(x, x, zeros(x), None, None)

    def points(self, server: MVRState) -> tuple[Vector, Vector]:
        return server.x, server.x_old

    def prime(self, server: MVRState, h: tuple[Vector, Vector], seen: Any) -> MVRState:
        return server._replace(m=server.m + (h[0] - server.m) / (seen + 1))

    def momentum(self, server: MVRState, h: tuple[Vector, Vector]) -> Vector:
        """m^t = a h(x^{t-1}) + (1-a) m^{t-1} + (1-a) (h(x^{t-1}) - h(x^{t-2})), with a = 1 - beta."""
        return h[0] + self.beta * (server.m - h[1])


@recipe
class MimeMVR(MVR):
    """MimeMVR and, without c, MimeLiteMVR."""

    eta_server: Value = number(POSITIVE)
    waits: bool = static()  # true for MimeMVR, whose clients need c before they train; false for MimeLiteMVR
    anchored: str = static()
    output: str = static()
    split: bool = static()
    gradient_rounds: int = static()

    @property
    def draws(self) -> bool:
        return self.output == "random"

    def start(self, x: Vector) -> MVRState:
        drawn = (x, jnp.zeros(())) if self.draws else (None, None)
        return MVRState(x, x, zeros(x), *drawn)

    def broadcast(self, server: MVRState, h: tuple[Vector, Vector]) -> MVRMessage:
        x_old = server.x_old if self.anchored == "previous" else None
        return MVRMessage(server.x, x_old, server.m, c=h[1] if self.waits else None)

    def local(self, message: MVRMessage, client: Client) -> Reply:
        x, x_old, m, c = message
        a, anchor = 1 - self.beta, x if x_old is None else x_old

        def step(y, batch):
            change = client.grad_difference(y, anchor, batch)
            g = client.grad(y, batch) if c is None else change + c  # MimeLiteMVR, MimeMVR
            d = a * g + (1 - a) * m + (1 - a) * change
            return y - self.eta * d

        def step_and_draw(carry, batch):
            y, drawn = carry
            return step(y, batch), where(batch.index == client.pick, y, drawn)

        if not self.draws:
            return Reply(send=client.descend(step, x) - x)
        y, drawn = client.descend(step_and_draw, (x, zeros(x)))
        return Reply(send=y - x, add=drawn)

    def server(self, server: MVRState, h: tuple[Vector, Vector], replies: Replies) -> MVRState:
        x = server.x + self.eta_server * replies.mean
        moved = server._replace(x=x, x_old=server.x, m=self.momentum(server, h))
        if not self.draws:
            return moved
        seen = server.seen + replies.steps
        came = norm(replies.total) > 0  # unless the client that was to draw dropped out or was refused
        fresh = (replies.coin * seen < replies.steps) & came
        return moved._replace(drawn=where(fresh, replies.total, server.drawn), seen=seen)


def mime_mvr(
    eta: Number,
    beta: Number,
    anchor: str = "previous",
    eta_server: Number = 1.0,
    init_rounds: int = 1,
    output: str = "last",
    split: bool = False,
) -> MimeMVR:
    r"""MimeMVR, $a = 1 - \beta$: $y \gets y - \eta d$ with
    $d = a(\nabla f_i(y;\zeta) - \nabla f_i(x^\circ;\zeta) + c) + (1-a) m^{t-1}
    + (1-a)(\nabla f_i(y;\zeta) - \nabla f_i(x^\circ;\zeta))$ and $c$ the mean gradient at $x^{t-2}$.

    Args:
        anchor: $x^\circ$ is $x^{t-2}$ (`"previous"`, as in the proofs) or $x^{t-1}$ (`"current"`, as printed).
        init_rounds: gradient-only rounds (`Algorithm.gradient_rounds`) whose mean gradient at $x^0$ becomes $m^0$ (the
            paper's $T_0$).
        output: `"random"` also keeps an iterate drawn uniformly from all clients and steps in `state.server.drawn`:
            the one the theorem speaks of.

    Reference: Karimireddy et al., 2020, Theorem IV, https://arxiv.org/abs/2008.03606
    """
    return _mvr("mime_mvr", True, eta, beta, anchor, eta_server, init_rounds, output, split)


def mime_lite_mvr(
    eta: Number,
    beta: Number,
    anchor: str = "previous",
    eta_server: Number = 1.0,
    init_rounds: int = 1,
    output: str = "last",
    split: bool = False,
) -> MimeMVR:
    r"""MimeLiteMVR: as `mime_mvr` without $c$,
    $d = a\nabla f_i(y;\zeta) + (1-a) m^{t-1} + (1-a)(\nabla f_i(y;\zeta) - \nabla f_i(x^\circ;\zeta))$.
    """
    return _mvr("mime_lite_mvr", False, eta, beta, anchor, eta_server, init_rounds, output, split)


def _mvr(owner, waits, eta, beta, anchor, eta_server, init_rounds, output, split) -> MimeMVR:
    choice(owner, "anchor", anchor, ("previous", "current"))
    choice(owner, "output", output, ("last", "random"))
    rounds = count(owner, "init_rounds", init_rounds)
    halves = flag(owner, "split", split)
    return checked(MimeMVR(eta, beta, eta_server, waits, anchor, output, halves, rounds), owner)
