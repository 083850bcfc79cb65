"""The reference back end: eager, one client after another, no padding, nothing cached or shared.

It is what every other back end must agree with, the mode to debug in (print, breakpoints and exceptions work inside
losses and algorithms), and the computation of a deployed client. An error names the client and what it was doing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedmime.aggregation.aggregator import sender_of
from fedmime.aggregation.encoder import GRADIENT, UPDATE
from fedmime.aggregation.gate import Reason
from fedmime.algorithms.algorithm import Batch, Message, Reply
from fedmime.engine.backends.backend import (
    PROBE_STREAM,
    UNDRAWN,
    Accepted,
    Answer,
    Backend,
    Problem,
    Scalars,
    Work,
)
from fedmime.engine.backends.randomized import draws_random_numbers
from fedmime.engine.cohort import Batches, ClientId, Cohort, Columns, Member, first_column
from fedmime.engine.contract import check_metrics, example_metrics
from fedmime.engine.intake import Intake
from fedmime.errors import ClientFailed, ConfigError, FedmimeError
from fedmime.vector import Vector, finite, squared_distance, zeros


class _Loaded(NamedTuple):
    """A member of the cohort with its data."""

    place: int
    member: Member
    name: ClientId
    columns: Columns
    examples: int
    """n, the number of rows of its columns."""
    batches: Batches | None
    """None for a client that does not train."""


class _Loading(NamedTuple):
    """A cohort after its data was checked, with the examples and mini-batches that its members use in one round."""

    cohort: Cohort
    clients: list[_Loaded]
    """Those whose data was accepted."""
    refused: list[int]
    """Positions in the population of the clients whose data cannot be used."""
    random: bool
    """Whether the loss draws random numbers."""
    by_steps: bool
    """Whether full gradients go through the mini-batches of local steps."""


class ReferenceBackend(Backend):
    """Clients one after another, in Python."""

    layout = "one client after another"

    def __init__(self, problem: Problem, model: Any, intake: Intake, drift: bool) -> None:
        self.problem, self._model, self._intake, self._drift = problem, model, intake, drift
        self._ready: dict[int, _Loading] = {}  # by round: the current one, and the next
        self._refused: dict[int, Reason] = {}  # clients whose gradient or update the gate refused
        self._new: dict[int, Any] = {}  # what clients keep if the server accepts the round

    def prepare(self, work: Work) -> None:
        """See `Backend.prepare`."""
        cohort, clients, refused = work.cohort, [], []
        for place, member in enumerate(cohort.members):
            if self._intake.refuses(cohort, place):
                refused.append(member.client)
                continue
            batches = cohort.source.batches(place) if member.steps else None
            name, columns = cohort.client_id(member.client), cohort.source.examples(place)
            clients.append(_Loaded(place, member, name, columns, len(first_column(columns)), batches))
        random = bool(clients) and draws_random_numbers(self.problem, self._model, clients[0].columns)
        self._ready[work.round] = _Loading(cohort, clients, refused, random, work.by_steps(random))

    def ask(
        self, work: Work, points: tuple[Vector, ...] = (), message: Message | None = None, bound: Any = np.inf
    ) -> Answer:
        """See `Backend.ask`."""
        if work.round not in self._ready or self._ready[work.round].cohort is not work.cohort:
            self.prepare(work)
        loading = self._ready[work.round]
        gradients = [Accepted(work.aggregator.combiner.linear) for _ in points]
        updates = Accepted(work.aggregator.combiner.linear)
        unclipped, losses = 0, {}
        for client in loading.clients:
            if points and client.member.sends_gradient:
                with _stage(client.name, "its full gradient"):
                    sent = [self._full_gradient(work, loading, client, point) for point in points]
                    unclipped += self._send_gradients(work, client, sent, bound, gradients)
            if message is not None and client.member.steps:
                with _stage(client.name, "local training"):
                    losses |= self._train(work, client, message, bound, updates)
        share = gradients[0].weight if gradients else 0.0
        refused = dict.fromkeys(loading.refused, Reason.DATA) | self._refused
        return Answer(
            tuple(accepted.collected for accepted in gradients) if share else (),
            share,
            updates.totals,
            len(loading.clients),
            lambda: refused,
            unclipped,
            losses=lambda: losses,
        )

    def settle(self, work: Work, accepted: bool) -> None:
        """See `Backend.settle`."""
        if self.memory is not None and accepted:
            self.memory = self.memory.write(list(self._new), list(self._new.values()))
        self._new, self._refused = {}, {}
        self._ready.pop(work.round, None)

    def metrics(self, params: Any, batch: Mapping[str, np.ndarray]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """See `Backend.metrics`."""
        check_metrics(self.problem, params, batch)
        arrays = {name: jnp.asarray(column) for name, column in batch.items()}
        return jax.device_get(example_metrics(self.problem, params, arrays))

    def _full_gradient(self, work: Work, loading: _Loading, client: _Loaded, point: Vector) -> Vector:
        """∇fᵢ(point), a weighted mean over chunks of the client's examples.

        Chunks matter only to losses with random numbers, which draw others for each of them.
        """
        n, key = client.examples, jax.random.fold_in(work.key, client.member.client)
        if loading.by_steps:
            assert client.batches is not None
            rows, counts = client.batches
            batches = [(k, rows[k, :count]) for k, count in enumerate(counts)]
        else:
            size = self.problem.chunk if loading.random else n
            chunks = (np.arange(start, min(start + size, n)) for start in range(0, n, size))
            batches = [(PROBE_STREAM + number, chunk) for number, chunk in enumerate(chunks)]
        total = zeros(point)
        for stream, chosen in batches:
            grad = self._grad(point, client.columns, chosen, jax.random.fold_in(key, stream))[1]
            total = total + len(chosen) / n * grad
        return total

    def _grad(self, y: Vector, columns: Columns, rows: np.ndarray, key: jax.Array) -> tuple[jax.Array, Vector]:
        batch = {name: jnp.asarray(column[rows]) for name, column in columns.items()}
        loss, grad = jax.value_and_grad(lambda params: self.problem.loss(params, batch, key).mean())(y.tree)
        return loss, Vector(grad)

    def _send_gradients(
        self, work: Work, client: _Loaded, sent: list[Vector], bound: Any, accepted: list[Accepted]
    ) -> bool:
        """Send a client's full gradients, one at each point; whether none of them was clipped.

        Only an aggregator that needs every client's own gradient lets the gate look at each of them; otherwise a sound
        client's gradients are added as they are.
        """
        aggregator, index, unclipped = work.aggregator, client.member.client, True
        if aggregator.by_client:
            senders = [sender_of(GRADIENT, work.key, index, number) for number in range(len(sent))]
            each = [aggregator.deliver(g, (), by, bound) for g, by in zip(sent, senders, strict=True)]
            if reason := max(int(delivered.reason) for delivered in each):
                self._refused[index] = Reason(reason)
                return False
            sent = [delivered.message for delivered in each]
            unclipped = all(delivered.unclipped for delivered in each)
        for part, g in zip(accepted, sent, strict=True):
            part.add(float(work.gradient_shares[client.place]), g)
        return unclipped

    def _train(self, work: Work, loaded: _Loaded, message: Message, bound: Any, accepted: Accepted) -> dict[int, float]:
        """Train one client and send its update; its mean loss by its position, or nothing if the gate refuses it."""
        aggregator, index = work.aggregator, loaded.member.client
        client = _Client(self, work, loaded)
        reply: Reply = work.algorithm.local(message, client)
        sender = sender_of(UPDATE, work.key, index)
        delivered = aggregator.deliver((reply.send, reply.add), client.residual, sender, bound)
        send, add = delivered.message
        keep = (reply.keep, delivered.residual) if aggregator.error_feedback else reply.keep
        if reason := int(delivered.reason) if finite(reply.keep) else Reason.NOT_FINITE:
            self._refused[index] = Reason(reason)
            return {}
        self._new[index] = jax.device_get(keep)
        w, steps = float(work.update_shares[loaded.place]), loaded.member.steps
        scalars = Scalars(w, client.loss, client.drift, steps, w * steps, 1, delivered.unclipped)
        accepted.add(w, send, add, jnp.stack([jnp.asarray(scalar, float) for scalar in scalars]))
        return {index: float(client.loss) / steps}


class _Client:
    """A client as `Algorithm.local` sees it."""

    def __init__(self, backend: ReferenceBackend, work: Work, loaded: _Loaded) -> None:
        assert loaded.batches is not None
        member, self._columns, self._batches = loaded.member, loaded.columns, loaded.batches
        self._key = jax.random.fold_in(work.key, member.client)
        self._grad, self._watch_drift = backend._grad, backend._drift
        kept: Any = backend.memory.read([member.client])[0] if backend.memory is not None else ()
        self.kept, self.residual = kept if work.aggregator.error_feedback else (kept, ())
        self.steps = jnp.asarray(member.steps)
        self._draws, self._own_pick = work.algorithm.draws, work.pick - member.before
        self.loss, self.drift = jnp.zeros(()), jnp.zeros(())
        self._last_loss = jnp.zeros(())

    @property
    def pick(self) -> jax.Array:
        if not self._draws:
            raise ConfigError(UNDRAWN)
        return jnp.asarray(self._own_pick if 0 <= self._own_pick < int(self.steps) else -1)

    def grad(self, y: Vector, batch: Batch) -> Vector:
        self._last_loss, gradient = self._at(y, batch)
        return gradient

    def grad_difference(self, y: Vector, x: Vector, batch: Batch) -> Vector:
        self._last_loss, gradient = self._at(y, batch)
        return gradient - self._at(x, batch)[1]

    def _at(self, y: Vector, batch: Batch) -> tuple[jax.Array, Vector]:
        k = int(batch.index)
        rows = self._batches.rows[k, : self._batches.counts[k]]
        return self._grad(y, self._columns, rows, jax.random.fold_in(self._key, k))

    def descend(self, step: Callable[[Any, Batch], Any], start: Any) -> Any:
        carry, x = start, start if isinstance(start, Vector) else start[0]
        for k in range(len(self._batches.counts)):
            if self._watch_drift:
                self.drift = self.drift + squared_distance(carry if isinstance(carry, Vector) else carry[0], x)
            carry = step(carry, Batch(jnp.asarray(k), None))
            self.loss = self.loss + self._last_loss
        return carry


@contextlib.contextmanager
def _stage(client: ClientId, stage: str) -> Iterator[None]:
    """Name the client and what it was doing in an error that its loss or the algorithm raises."""
    try:
        yield
    except FedmimeError:
        raise
    except Exception as error:
        raise ClientFailed(f"client {client!r}, {stage}: {type(error).__name__}: {error}") from error
