"""One round, as the paper writes it.

The server asks the cohort for its mean full gradient at the algorithm's `points`, broadcasts a message, has every
client train from it, and folds the mean of the replies into its state. The clients' part is a back end's; the rest is
here.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedmime.aggregation.aggregator import Aggregator, Broadcaster
from fedmime.aggregation.encoder import GRADIENT, UPDATE
from fedmime.aggregation.gate import Gate
from fedmime.aggregation.gate import counts as gate_counts
from fedmime.algorithms.abstract import reply_of
from fedmime.algorithms.algorithm import Algorithm, Replies, Server, State
from fedmime.engine.backends.backend import Answer, Backend, ClientMessages, Scalars, Totals, Work
from fedmime.engine.cohort import ClientId
from fedmime.engine.work import server_random_numbers
from fedmime.errors import ConfigError
from fedmime.vector import Vector, finite, norm, squared_distance, where, zeros


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
    """Clients whose data was not finite, or a message of whom was not, or had exploded: it is left out of its mean."""
    steps: int
    examples: int
    loss: float
    """The mean of the mini-batch losses before each local step; NaN where nobody trained."""
    drift: float
    """The mean of ‖y − x‖² over local steps; NaN where it was not measured."""
    gradient_norm: float
    """‖c‖ of the cohort's mean full gradient at the first point; NaN where the algorithm asks for none."""
    deviation: float
    """‖e‖ of the error e for which the clients' mean movement equals −K·η·U(c + e, s), where c is the mean full
    gradient and K the weighted mean number of local steps; NaN if the algorithm does not define it."""
    update_norm: float
    reasons: Mapping[str, int] = {}
    """How many of the refused clients were refused for which reason; `fedmime.aggregation.gate` lists them."""
    clipped: float = math.nan
    """The fraction of the accepted updates that were clipped; NaN if there is no `clip` encoder, or no such update."""
    clip_norm: float = math.nan
    """The norm to which the first `clip` encoder clips updates; NaN if there is no such encoder."""
    epsilon: float = math.nan
    """What the run has spent of its privacy; NaN where there is none."""


class Report(NamedTuple):
    """Scalars that the server's step computes, copied to the host as one array."""

    accepted: Any
    loss: Any
    drift: Any
    gradient_norm: Any
    deviation: Any
    update_norm: Any
    reported: Any
    """The number of accepted updates."""
    unclipped: Any
    """How many of them were not clipped."""


_NOTHING = Report(False, math.nan, math.nan, math.nan, math.nan, 0.0, 0.0, 0.0)  # of a round that was not played


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
    algorithm, cohort, aggregator = work.algorithm, work.cohort, work.aggregator.current(state.aggregation)
    work = work._replace(aggregator=aggregator)
    broadcaster = backend.broadcaster = Broadcaster(aggregator, work.key)
    server = jax.device_put(state.server, jax.local_devices()[0])  # a no-op but for the first round
    backend.memory = state.memory
    noise_key = backend.noise_key(work.key)
    prime, trains = work.prime, algorithm.local_steps and not work.prime
    points = broadcaster.received(algorithm.prime_points(server) if prime else algorithm.points(server))
    bound = _bound(server.x, largest)
    planned = None if aggregator.privacy is None else cohort.denominator(algorithm.split)

    def message(h: tuple[Vector, ...]) -> Any:
        sent = algorithm.broadcast(server, h)
        return broadcaster.received(sent, algorithm.exact(sent))

    # The clients' part, in one exchange or in two.
    if trains and algorithm.waits:
        first = backend.ask(work, points, bound=bound)
        h = mean_gradients(work, first, points, noise_key)
        answer = backend.ask(work, (), message(h), bound) if h is not None else first
    else:
        first = answer = backend.ask(work, points, message(()) if trains else None, bound)
        h = mean_gradients(work, answer, points, noise_key)

    # The server's part.
    report, totals = None, answer.totals
    if totals is None and trains and _always_releases(work, answer):
        totals = _zero_totals(algorithm, server)
    if h is not None and (totals is not None or not trains):
        coin = float(server_random_numbers(work.key)[1]) if algorithm.draws else None
        server, report = _server_step(
            algorithm,
            aggregator,
            noise_key,
            server,
            h,
            totals,
            work.round - state.repeats,
            float(cohort.population),
            coin,
            bound,
            planned,
            prime=prime,
        )
    if meanwhile is not None:
        meanwhile()
    report = None if report is None else Report(*np.asarray(report).tolist())
    carried = aggregator.spend(state.aggregation, len(points) + trains)
    refused = answer.refused()
    accepted = report is not None and bool(report.accepted)
    losses = _updated_losses(state.losses, work, answer) if accepted else state.losses
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
        reasons=gate_counts([*refused.values(), *answer.strays]),
        clipped=1 - told.unclipped / told.reported if aggregator.clips and told.reported else math.nan,
        clip_norm=float(aggregator.clip_norm(UPDATE)) if aggregator.clips else math.nan,
    )
    if accepted and planned is not None:
        if points:
            reported = float(first.share) * planned
            carried = aggregator.adapt(carried, GRADIENT, noise_key, first.unclipped, reported, planned)
        if trains:
            carried = aggregator.adapt(carried, UPDATE, noise_key, told.unclipped, told.reported, planned)
    repeats = state.repeats + (prime and not accepted)
    return State(work.round + 1, server, backend.memory, carried, losses, repeats), info


def _updated_losses(known: Any, work: Work, answer: Answer) -> Any:
    """The last known losses of the clients [clients], with those of this round; `()` where no sampler asks for them."""
    if not work.wants_losses or answer.totals is None:
        return known
    if answer.losses is None:
        raise ConfigError("simulate: this back end reports no losses of single clients, which the sampler asks for")
    found = {client: loss for client, loss in answer.losses().items() if math.isfinite(loss)}
    new = known.copy()
    new[list(found)] = list(found.values())
    return new


def _always_releases(work: Work, answer: Answer) -> bool:
    """Whether a round has a result even if nobody sends anything.

    Privacy needs it: that a client was alone in a cohort, or that all were refused, must not show. That too few clients
    reported may show, because it does not depend on data.
    """
    return work.aggregator.privacy is not None and not work.cohort.cancelled and not answer.cancelled


def _zero_totals(algorithm: Algorithm, server: Server) -> Totals:
    """The totals of a round without replies: zeros."""
    reply = reply_of(algorithm, server)
    send, add = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), (reply.send, reply.add))
    return Totals(send, add, jnp.zeros(len(Scalars._fields), jax.tree.leaves(server.x)[0].dtype))


def mean_gradients(
    work: Work, answer: Answer, points: tuple[Vector, ...], noise_key: jax.Array
) -> tuple[Vector, ...] | None:
    """The mean full gradients of an answer; None if gradients were asked for and nobody gave one.

    Private ones are noise then: that nobody came must not show.
    """
    if not points:
        return ()
    if _always_releases(work, answer):
        gradients = answer.gradients or tuple(map(zeros, points))
        return _mean_gradients(work.aggregator, noise_key, gradients, work.cohort.denominator(work.algorithm.split))
    if not answer.gradients:
        return None
    if not work.aggregator.by_client and math.isclose(answer.share, 1.0, rel_tol=1e-12):  # nobody was left out
        return answer.gradients
    return _mean_gradients(work.aggregator, noise_key, answer.gradients, answer.share)


@jax.jit
def _mean_gradients(
    aggregator: Aggregator, key: jax.Array, gradients: tuple[Any, ...], weight: Any
) -> tuple[Vector, ...]:
    return tuple(
        _combined(aggregator, GRADIENT, gradient, weight, key, number) for number, gradient in enumerate(gradients)
    )


def _combined(aggregator: Aggregator, kind: str, sent: Any, weight: Any, key: jax.Array, number: int = 0) -> Any:
    """One message of those of all clients: a mean, or what a robust combiner makes of them, with noise if asked for.

    Args:
        sent: the weighted sum of the messages, or all of them.
        weight: the sum of the weights; with noise, the number of clients that was planned.
        key: of the round's noise.
        number: which message of its kind it is.
    """
    if isinstance(sent, ClientMessages):
        somebody = jnp.any(sent.weights > 0)
        return jax.tree.map(lambda leaf: jnp.where(somebody, leaf, jnp.nan), aggregator.combiner.combine(*sent))
    if aggregator.privacy is not None:  # weights are fixed, so that the mean over those who came is not taken
        return aggregator.noisy(sent, kind, key, weight, number)
    return jax.tree.map(lambda leaf: leaf / jnp.asarray(weight, leaf.dtype), sent)


@jax.jit
def _bound(x: Vector, largest: Any) -> jax.Array:
    """The largest norm of an update that the gate accepts: largest · (1 + ‖x‖)."""
    return jnp.asarray(largest, jax.tree.leaves(x)[0].dtype) * (1 + norm(x))


@functools.partial(jax.jit, static_argnames="prime")
def _server_step(
    algorithm: Algorithm,
    aggregator: Aggregator,
    key: jax.Array,
    server: Server,
    h: tuple[Vector, ...],
    totals: Totals | None,
    seen: jax.Array,
    population: Any,
    coin: Any,
    bound: jax.Array,
    planned: Any,
    *,
    prime: bool,
) -> tuple[Server, jax.Array]:
    """The server's new state, and the fields of a `Report` as one array.

    A result that is not finite, or leads too far, leaves the state as it was. `seen` is the number of accepted rounds
    before a gradient-only one.
    """
    dtype = jax.tree.leaves(server.x)[0].dtype
    zero, nan = jnp.zeros((), dtype), jnp.full((), jnp.nan, dtype)
    replies = Replies((), (), jnp.asarray(population, dtype), zero, zero, coin)
    deviation, accepted, loss, drift, counts = None, jnp.asarray(True), nan, zero, (zero, zero)
    if totals is not None:
        sums = Scalars(*totals.scalars.astype(dtype))
        mean = _combined(
            aggregator, UPDATE, totals.messages or totals.send, sums.weight if planned is None else planned, key
        )
        mean_steps = sums.weighted_steps / sums.weight
        replies = Replies(mean, totals.add, replies.population, sums.steps, mean_steps, coin)
        deviation = algorithm.deviation(server, h, replies)
        loss, drift = sums.loss / sums.steps, sums.drift / sums.steps
        accepted = accepted if planned is not None else sums.steps > 0
        counts = (sums.clients, sums.unclipped)
    new = algorithm.prime(server, h, seen) if prime else algorithm.server(server, h, replies)
    moved = jnp.sqrt(squared_distance(new.x, server.x))
    accepted = accepted & finite(new) & (moved <= bound)
    lengths = (norm(h[0]) if h else nan, nan if deviation is None else norm(deviation), jnp.where(accepted, moved, 0))
    report = Report(accepted, loss, drift, *lengths, *counts)
    return where(accepted, new, server), jnp.stack([jnp.asarray(scalar, dtype) for scalar in report])
