"""Mime: apply the base optimizer at every client step, with statistics that only the server moves."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax

from fedmime.algorithms.algorithm import Algorithm, Client, Replies, Reply
from fedmime.hyperparameters import Number, Value, checked, number, recipe, static
from fedmime.optimizers import BaseOptimizer, Statistics
from fedmime.optimizers.base import application, takes_base
from fedmime.validation import POSITIVE, choice, count, flag
from fedmime.vector import Vector


class MimeState(NamedTuple):
    """The server."""

    x: Vector  # server model
    s: Statistics  # of the base optimizer; clients read it, only the server moves it


class MimeMessage(NamedTuple):
    """What a client is sent before it trains."""

    x: Vector
    s: Statistics
    c: Vector | None  # mean of the full gradients at x; None for MimeLite


@recipe
class Tracking(Algorithm):
    """Algorithms whose server keeps a base optimizer's statistics of the cohort's mean full gradient."""

    base: BaseOptimizer

    def start(self, x: Vector) -> MimeState:
        return MimeState(x, self.base.init(x))

    def points(self, server: MimeState) -> tuple[Vector, ...]:
        return (server.x,)

    def prime(self, server: MimeState, h: tuple[Vector, ...], seen: Any) -> MimeState:
        return server._replace(s=self.track(server, h))

    def track(self, server: MimeState, h: tuple[Vector, ...]) -> Statistics:
        """V at the mean gradient, where one was asked for."""
        return self.base.track_at(h[0], server.s, server.x) if h else server.s


@recipe
class Mime(Tracking):
    """Mime and MimeLite, with the server's statistics fixed during local steps or moved by each client (Loc-)."""

    eta: Value = number(POSITIVE)
    eta_server: Value = number(POSITIVE)
    waits: bool = static()  # true for Mime, whose clients need c before they train; false for MimeLite
    apply: str = static()
    state: str = static()
    split: bool = static()
    gradient_rounds: int = static()

    def points(self, server: MimeState) -> tuple[Vector, ...]:
        stateless = not jax.tree.leaves(server.s)
        return () if stateless and not self.waits else (server.x,)

    def broadcast(self, server: MimeState, h: tuple[Vector, ...]) -> MimeMessage:
        return MimeMessage(server.x, server.s, c=h[0] if self.waits else None)

    @property
    def remedy(self) -> str:
        if self.apply == "frozen" and self.base.adaptive:
            return f"{super().remedy}; where gradients are sparse, give the base a floor or take apply='lookahead'"
        return super().remedy

    def exact(self, message: MimeMessage) -> Any:
        """The statistics of most bases: U divides by their root, and one that is rounded to zero would blow it up."""
        return () if self.base.compressible else message.s

    def local(self, message: MimeMessage, client: Client) -> Reply:
        x, s, c = message
        U = self.base.for_round(self.apply, s, x)

        def gradient(y, batch):
            if c is None:  # MimeLite
                return client.grad(y, batch)
            return client.grad_difference(y, x, batch) + c

        def step(y, batch):
            return y - self.eta * U(gradient(y, batch), y)

        def step_local(carry, batch):
            y, s_i = carry
            g = gradient(y, batch)
            return y - self.eta * self.base.direction(self.apply)(g, s_i, y), self.base.track_at(g, s_i, y)

        y = client.descend(step_local, (x, s))[0] if self.state == "local" else client.descend(step, x)
        return Reply(send=y - x)

    def server(self, server: MimeState, h: tuple[Vector, ...], replies: Replies) -> MimeState:
        return MimeState(server.x + self.eta_server * replies.mean, self.track(server, h))

    def deviation(self, server: MimeState, h: tuple[Vector, ...], replies: Replies) -> Vector | None:
        """From the mean direction of the local steps, which is U(c + e, s), where U is linear and s fixed."""
        affine = self.base.affine(server.s, server.x)
        if not h or self.apply != "frozen" or self.state == "local" or affine is None:
            return None
        scale, offset = affine
        mean = replies.mean / (-self.eta * replies.mean_steps)
        return (mean - offset) / scale - h[0]


@takes_base
def mime(
    base: BaseOptimizer,
    eta: Number,
    eta_server: Number = 1.0,
    apply: str | None = None,
    state: str = "fixed",
    split: bool = False,
    prime_rounds: int | None = None,
) -> Mime:
    r"""Mime with base optimizer $\mathcal{B} = (U, V)$ and client rate $\eta$.

    Clients take $y \gets y - \eta\, U(g, s)$ with $g = \nabla f_i(y;\zeta) - \nabla f_i(x;\zeta) + c$, where $c$ is
    the cohort's mean full gradient at $x$; then $s \gets V(c, s)$ and $x$ moves to the mean of the $y_i$.

    Args:
        apply: `"frozen"` (the paper; default) uses the server's s as it is, `"lookahead"` the whole optimizer from s.
        state: `"fixed"`, or `"local"` for Loc-Mime, where each client moves a copy of s and discards it.
        split: one half of the cohort sends full gradients, the other half trains.
        prime_rounds: gradient-only rounds (`Algorithm.gradient_rounds`) that fill s first; by default 1 for adaptive
            bases applied frozen, else 0.

    Reference: Karimireddy et al., 2020, Algorithm 1, https://arxiv.org/abs/2008.03606
    """
    return _mime("mime", True, base, eta, eta_server, apply, state, split, prime_rounds)


@takes_base
def mime_lite(
    base: BaseOptimizer,
    eta: Number,
    eta_server: Number = 1.0,
    apply: str | None = None,
    state: str = "fixed",
    split: bool = False,
    prime_rounds: int | None = None,
) -> Mime:
    r"""MimeLite: as `mime`, with the uncorrected $g = \nabla f_i(y;\zeta)$, so one exchange a round is enough."""
    return _mime("mime_lite", False, base, eta, eta_server, apply, state, split, prime_rounds)


def _mime(owner, waits, base, eta, eta_server, apply, state, split, prime_rounds) -> Mime:
    apply = application(owner, base, apply)
    choice(owner, "state", state, ("fixed", "local"))
    rounds = priming(owner, base, apply, prime_rounds)
    return checked(Mime(base, eta, eta_server, waits, apply, state, flag(owner, "split", split), rounds), owner)


def priming(owner: str, base: BaseOptimizer, apply: str, prime_rounds: int | None) -> int:
    """How many gradient-only rounds fill the statistics: a frozen adaptive base must not divide by zeros."""
    if prime_rounds is None:
        return int(base.adaptive and apply == "frozen")
    return count(owner, "prime_rounds", prime_rounds)
