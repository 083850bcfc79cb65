"""One round, as the paper writes it.

The server asks the cohort for its mean full gradient at the algorithm's `points`, broadcasts a message, has every
client train from it, and folds the mean of the replies into its state. The clients' part is a back end's; the rest is
here.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedmime.algorithms.abstract import Anchor
from fedmime.algorithms.algorithm import Algorithm, Replies, Server, State
from fedmime.engine.backends.backend import Answer, Backend, Figures, Totals, Work
from fedmime.engine.cohort import ClientId, Cohort
from fedmime.engine.memory import ClientMemory, RamMemory
from fedmime.hyperparameters import at_round
from fedmime.validation import POSITIVE, count, real
from fedmime.vector import Vector, finite, norm, squared_distance, where


@dataclasses.dataclass(frozen=True)
class Gate:
    """The limits beyond which an update is refused and a run is given up.

    Args:
        largest: an update of a client or of the server has exploded if it is longer than `largest * (1 + ‖x‖)`. An
            exploded client is left out of the means; if the server's update has exploded, the round is abandoned.
        patience: number of abandoned rounds in a row after which a run ends with `Diverged`.
    """

    largest: float = 1e3
    patience: int = 3

    def __post_init__(self) -> None:
        real("gate", "largest", self.largest, POSITIVE)
        count("gate", "patience", self.patience, least=1)


class Info(NamedTuple):
    """What happened in a round, beside the new state."""

    round: int
    primed: bool
    """Whether it was a gradient-only round."""
    abandoned: bool
    """Whether its result was not finite or had exploded, or too few clients were left: the state is the old one."""
    clients: int
    """Members of the cohort whose data could be used."""
    refused: tuple[ClientId, ...]
    """Clients whose data or reply was not finite, or whose update had exploded; they are left out of the means."""
    steps: int
    examples: int
    loss: float
    """The mean of the mini-batch losses before each local step."""
    drift: float
    """The mean of ‖y − x‖² over local steps; NaN where it was not measured."""
    gradient_norm: float
    """‖c‖ of the cohort's mean full gradient at the first point; NaN where the algorithm asks for none."""
    deviation: float
    """‖e‖ of x^t = x^{t-1} − Kη U(c + e, s); NaN where there is no such e."""
    update_norm: float


class Report(NamedTuple):
    """What the server's step tells."""

    accepted: Any
    loss: Any
    drift: Any
    gradient_norm: Any
    deviation: Any
    update_norm: Any


_NOTHING = Report(False, math.nan, math.nan, math.nan, math.nan, 0.0)  # of a round that was not played


def work_of(algorithm: Algorithm, anchor: Anchor, round_number: int, cohort: Cohort, key: jax.Array) -> Work:
    """The clients' work in a round. It needs no state, so it can be made before the round begins.

    Args:
        anchor: how local steps use gradient differences, `anchor_of(algorithm, server)`.
        key: the run's; each round and client folds its own numbers in.
    """
    recipe = at_round(algorithm, round_number)
    updates, gradients = cohort.shares(algorithm.split)
    key = fold_in(key, round_number)
    pick = int(_draws(key)[0] * max(cohort.steps, 1)) if algorithm.draws else -1
    prime = round_number < algorithm.gradient_rounds
    asks = prime or anchor.points > 0
    return Work(recipe, round_number, cohort, updates, gradients, key, pick, asks, Anchor() if prime else anchor)


fold_in = jax.jit(jax.random.fold_in)


def _draws(key: jax.Array) -> np.ndarray:
    """Two uniform random numbers for the server's own choices: which step to draw, and whether to keep its iterate."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key))).random(2)


def play(
    backend: Backend,
    work: Work,
    state: State,
    largest: float = Gate.largest,
    *,
    drift: bool = False,
    meanwhile: Callable[[], object] | None = None,
) -> tuple[State, Info]:
    """Run a round from the state before it: the state after it, and what happened.

    `meanwhile` is called when all work is on its way to the devices, before their results are waited for.
    """
    algorithm, cohort = work.algorithm, work.cohort
    server = jax.device_put(state.server, jax.local_devices()[0])  # a no-op but for the first round
    backend.memory = _memory(algorithm, state)
    prime = work.round < algorithm.gradient_rounds
    trains = algorithm.local_steps and not prime
    points = algorithm.prime_points(server) if prime else algorithm.points(server)
    bound = _bound(server.x, largest)

    # The clients' part, in one exchange or in two.
    if trains and algorithm.waits:
        first = backend.ask(work, points)
        h = mean_gradients(first, points)
        answer = backend.ask(work, (), algorithm.broadcast(server, h), bound) if h is not None else first
    else:
        answer = backend.ask(work, points, algorithm.broadcast(server, ()) if trains else None, bound)
        h = mean_gradients(answer, points)

    # The server's part.
    report = None
    if h is not None and (answer.totals is not None or not trains):
        coin = float(_draws(work.key)[1]) if algorithm.draws else None
        server, report = _server_step(
            algorithm,
            server,
            h,
            answer.totals,
            work.round,
            float(cohort.population),
            coin,
            bound,
            prime=prime,
        )
    if meanwhile is not None:
        meanwhile()
    report = None if report is None else Report(*np.asarray(report).tolist())
    refused = answer.refused()
    accepted = report is not None and bool(report.accepted)
    backend.settle(work, accepted)
    told = _NOTHING if report is None else report
    info = Info(
        round=work.round,
        primed=prime,
        abandoned=not accepted,
        clients=answer.clients,
        refused=tuple(map(cohort.client_id, refused)),
        steps=cohort.steps if trains and report is not None else 0,
        examples=cohort.examples,
        loss=float(told.loss),
        drift=float(told.drift) if drift else math.nan,
        gradient_norm=float(told.gradient_norm),
        deviation=float(told.deviation),
        update_norm=float(told.update_norm),
    )
    return State(work.round + 1, server, backend.memory), info


def _memory(algorithm: Algorithm, state: State) -> ClientMemory | None:
    """What clients have kept; a new memory where they keep something and none of them was seen yet."""
    blank = jax.tree.map(np.asarray, algorithm.remember(state.server.x))
    return RamMemory(blank) if state.memory is None and jax.tree.leaves(blank) else state.memory


def mean_gradients(answer: Answer, points: tuple[Vector, ...]) -> tuple[Vector, ...] | None:
    """The mean full gradients of an answer; None if gradients were asked for and nobody gave one."""
    if not points:
        return ()
    if not answer.gradients:
        return None
    whole = math.isclose(answer.share, 1.0, rel_tol=1e-12)  # nobody was left out
    return answer.gradients if whole else _divided(answer.gradients, answer.share)


@jax.jit
def _divided(gradients: tuple[Vector, ...], share: Any) -> tuple[Vector, ...]:
    return tuple(gradient / share for gradient in gradients)


@jax.jit
def _bound(x: Vector, largest: Any) -> jax.Array:
    """How long an update may be: what is longer has exploded."""
    return jnp.asarray(largest, jax.tree.leaves(x)[0].dtype) * (1 + norm(x))


@functools.partial(jax.jit, static_argnames="prime")
def _server_step(
    algorithm: Algorithm,
    server: Server,
    h: tuple[Vector, ...],
    totals: Totals | None,
    round_number: jax.Array,
    population: Any,
    coin: Any,
    bound: jax.Array,
    *,
    prime: bool,
) -> tuple[Server, jax.Array]:
    """The server's new state, and the fields of a `Report` as one array.

    A result that is not finite, or leads too far, leaves the state as it was.
    """
    dtype = jax.tree.leaves(server.x)[0].dtype
    zero, nan = jnp.zeros((), dtype), jnp.full((), jnp.nan, dtype)
    replies = Replies((), (), jnp.asarray(population, dtype), zero, zero, coin)
    deviation, accepted, loss, drift = None, jnp.asarray(True), zero, zero
    if totals is not None:
        sums = Figures(*totals.figures.astype(dtype))
        mean = jax.tree.map(lambda leaf: leaf / sums.weight.astype(leaf.dtype), totals.send)
        mean_steps = sums.weighted_steps / sums.weight
        replies = Replies(mean, totals.add, replies.population, sums.steps, mean_steps, coin)
        deviation = algorithm.deviation(server, h, replies)
        accepted, loss, drift = sums.steps > 0, sums.loss / sums.steps, sums.drift / sums.steps
    new = algorithm.prime(server, h, round_number) if prime else algorithm.server(server, h, replies)
    moved = jnp.sqrt(squared_distance(new.x, server.x))
    accepted = accepted & finite(new) & (moved <= bound)
    lengths = (norm(h[0]) if h else nan, nan if deviation is None else norm(deviation), jnp.where(accepted, moved, 0))
    report = Report(accepted, loss, drift, *lengths)
    return where(accepted, new, server), jnp.stack([jnp.asarray(figure, dtype) for figure in report])
