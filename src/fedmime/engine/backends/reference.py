"""The reference back end: eager, one client after another, no padding, nothing kept or shared.

It is what every other back end must agree with, the mode to debug in (print, breakpoints and exceptions work inside
losses and algorithms), and the computation of a deployed client. An error names the client and what it was doing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedmime.algorithms.algorithm import Batch, Message, Reply
from fedmime.engine.backends.backend import (
    EXPLODED,
    PROBE_STREAM,
    UNDRAWN,
    Answer,
    Figures,
    Problem,
    Totals,
    Work,
    follows_steps,
)
from fedmime.engine.backends.randomized import draws_random_numbers
from fedmime.engine.cohort import ClientId, Columns, first_column
from fedmime.engine.contract import check_metrics
from fedmime.engine.intake import Intake
from fedmime.engine.memory import ClientMemory
from fedmime.errors import ClientFailed, ConfigError, FedmimeError
from fedmime.vector import Vector, finite, norm, squared_distance, zeros


class ReferenceBackend:
    """Clients one after another, in Python."""

    def __init__(self, problem: Problem, model: Any, intake: Intake, drift: bool) -> None:
        self.memory: ClientMemory | None = None
        self.problem, self._model, self._intake, self._drift = problem, model, intake, drift
        self._random: bool | None = None  # whether the loss draws random numbers, known from the first client on
        self._refused: dict[int, str] = {}
        self._new: dict[int, Any] = {}  # what clients keep if the server accepts the round

    def prepare(self, work: Work) -> None:
        """Do nothing: there is nothing to lay out."""

    def ask(
        self, work: Work, points: tuple[Vector, ...] = (), message: Message | None = None, bound: Any = np.inf
    ) -> Answer:
        """See `Backend.ask`."""
        reasons = [self._intake.refuses(work.cohort, place) for place in range(len(work.cohort.members))]
        self._refused |= {m.client: why for m, why in zip(work.cohort.members, reasons, strict=True) if why}
        clients = [place for place, why in enumerate(reasons) if why is None]
        share, sums = 0.0, [zeros(point) for point in points]
        totals: Totals | None = None
        for place in clients:
            member = work.cohort.members[place]
            if points and member.probes:
                with _stage(work.cohort.client_id(member.client), "its full gradient"):
                    gradients = [self._full_gradient(work, place, point) for point in points]
                share += work.gradients[place]
                sums = [s + float(work.gradients[place]) * g for s, g in zip(sums, gradients, strict=True)]
            if message is not None and member.steps:
                with _stage(work.cohort.client_id(member.client), "local training"):
                    totals = self._train(work, place, message, bound, totals)
        return Answer(tuple(sums) if share else (), share, totals, len(clients), lambda: self._refused)

    def settle(self, work: Work, accepted: bool) -> None:
        """See `Backend.settle`."""
        if self.memory is not None and accepted:
            self.memory = self.memory.write(list(self._new), list(self._new.values()))
        self._new, self._refused = {}, {}

    def metrics(self, params: Any, batch: Mapping[str, np.ndarray]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """See `Backend.metrics`."""
        check_metrics(self.problem, params, batch)
        return jax.device_get(self.problem.metrics(params, {name: jnp.asarray(a) for name, a in batch.items()}))

    def _full_gradient(self, work: Work, place: int, point: Vector) -> Vector:
        """∇fᵢ(point), a weighted mean over chunks of the client's examples.

        Chunks matter only to losses with random numbers, which draw others for each of them.
        """
        columns = work.cohort.source.examples(place)
        n, client = len(first_column(columns)), work.cohort.members[place].client
        key = jax.random.fold_in(work.key, client)
        if self._random is None:
            self._random = draws_random_numbers(self.problem, self._model, columns)
        if follows_steps(work, self._random):
            rows, counts = work.cohort.source.batches(place)
            batches = [(k, rows[k, :count]) for k, count in enumerate(counts)]
        else:
            size = self.problem.chunk if self._random else n
            chunks = (np.arange(start, min(start + size, n)) for start in range(0, n, size))
            batches = [(PROBE_STREAM + number, chunk) for number, chunk in enumerate(chunks)]
        total = zeros(point)
        for stream, chosen in batches:
            grad = self._grad(point, columns, chosen, jax.random.fold_in(key, stream))[1]
            total = total + len(chosen) / n * grad
        return total

    def _grad(self, y: Vector, columns: Columns, rows: np.ndarray, key: jax.Array) -> tuple[jax.Array, Vector]:
        batch = {name: jnp.asarray(column[rows]) for name, column in columns.items()}
        loss, grad = jax.value_and_grad(lambda params: self.problem.loss(params, batch, key).mean())(y.tree)
        return loss, Vector(grad)

    def _train(self, work: Work, place: int, message: Message, bound: Any, totals: Totals | None) -> Totals | None:
        """Train one client and add its reply to the totals, unless the gate refuses it."""
        member = work.cohort.members[place]
        client = _Client(self, work, place)
        reply: Reply = work.algorithm.local(message, client)
        length = norm(Vector(reply.send))
        if not bool(jnp.isfinite(length) & (length <= bound) & finite((reply.add, reply.keep))):
            self._refused[member.client] = EXPLODED
            return totals
        self._new[member.client] = jax.device_get(reply.keep)
        w, steps = float(work.updates[place]), member.steps
        send = jax.tree.map(lambda leaf: jnp.asarray(w, leaf.dtype) * leaf, reply.send)
        figures = Figures(w, client.loss, client.drift, steps, w * steps)
        each = Totals(send, reply.add, jnp.stack([jnp.asarray(figure, float) for figure in figures]))
        return each if totals is None else jax.tree.map(lambda a, b: a + b, totals, each)


class _Client:
    """A client as `Algorithm.local` sees it."""

    def __init__(self, backend: ReferenceBackend, work: Work, place: int) -> None:
        member = work.cohort.members[place]
        self._columns, self._batches = work.cohort.source.examples(place), work.cohort.source.batches(place)
        self._key = jax.random.fold_in(work.key, member.client)
        self._grad, self._watch_drift = backend._grad, backend._drift
        self.kept = backend.memory.read([member.client])[0] if backend.memory is not None else ()
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
