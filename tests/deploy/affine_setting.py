"""One client's round two ways: `algorithm.local` through the reference back end, and an affine node by its messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import fedmime as fm
from fedmime.aggregation.aggregator import PLAIN, Broadcaster
from fedmime.algorithms.abstract import anchor_of
from fedmime.deploy import affine
from fedmime.deploy.dialect import Offer
from fedmime.deploy.kept import DiskShelf
from fedmime.deploy.messages import NEVER, NOTHING, POINTS, Answer, Ask, Hello, opened, packed
from fedmime.deploy.protocol import Node, unpack
from fedmime.deploy.rule import Signature
from fedmime.engine.backends.backend import Scalars, Work
from fedmime.engine.backends.reference import ReferenceBackend
from fedmime.engine.intake import Intake
from fedmime.engine.memory import RamMemory
from fedmime.engine.sampling import Schedule
from fedmime.engine.work import run_key, work_of
from fedmime.hyperparameters import at_round
from fedmime.vector import Vector
from fedmime.version import exact

RUN, NONCE, DIGEST = "a" * 32, "b" * 32, "c" * 64
MOST = 1 << 24


class Outcome(NamedTuple):
    """What a server receives of one client, as one row of numbers each."""

    gradient: np.ndarray
    send: np.ndarray
    add: np.ndarray
    scalars: np.ndarray
    """Steps, the sum of losses and the sum of squared distances."""


class Round(NamedTuple):
    """The server before a round of a single client."""

    algorithm: Any
    problem: Any
    columns: dict[str, np.ndarray]
    schedule: Schedule
    number: int
    server: Any
    h: tuple[Vector, ...]
    kept: Any
    """What the client kept in round 1."""

    @property
    def model(self) -> Signature:
        return affine.signature_of(self.server.x.tree)

    @property
    def message(self) -> Any:
        return self.algorithm.broadcast(self.server, self.h if self.algorithm.waits else ())


def started(
    algorithm: Any, problem: Any, params: Any, columns: Any, schedule: Schedule, number: int, seed: int
) -> Round:
    """A server in the middle of a run: statistics, mean gradients and kept values are random ones."""
    algorithm, rng = at_round(algorithm, number), np.random.default_rng(seed)

    def like(x: Any) -> Any:
        return jax.tree.map(lambda leaf: np.asarray(rng.normal(size=leaf.shape), leaf.dtype), x)

    server = algorithm.init(params).server
    if hasattr(algorithm, "base"):
        for _ in range(2):
            server = server._replace(s=algorithm.base.track_at(like(server.x), server.s, server.x))
    if hasattr(server, "c"):
        server = server._replace(c=like(server.c))
    h = tuple(like(point) for point in algorithm.points(server))
    return Round(algorithm, problem, columns, schedule, number, server, h, like(algorithm.remember(server.x)))


def by_reference(before: Round) -> Outcome:
    """The algorithm's own text."""
    backend = ReferenceBackend(before.problem, before.server.x.tree, Intake(before.problem.check), drift=True)
    if jax.tree.leaves(before.kept):
        backend.memory = RamMemory(before.kept).write([0], [before.kept])
    answer = backend.ask(_work(before), before.algorithm.points(before.server), before.message)
    assert not answer.refused()
    assert answer.totals is not None
    scalars = Scalars(*answer.totals.scalars)
    facts = np.array([scalars.steps, scalars.loss, scalars.drift], float)
    return Outcome(flat(answer.gradients), flat(answer.totals.send), flat(answer.totals.add), facts)


def _work(before: Round) -> Work:
    algorithm, number = before.algorithm, before.number
    cohort = before.schedule.cohort(algorithm, fm.data.from_arrays({"c": before.columns}), number)
    return work_of(algorithm, anchor_of(algorithm, before.server), number, cohort, run_key(before.schedule.seed))


def shelve(before: Round, directory: Path) -> None:
    """Put what the client kept where its node looks for it."""
    if leaves := jax.tree.leaves(before.kept):
        DiskShelf(directory / RUN).write(1, before.model.pack(leaves))


def greeting(before: Round) -> bytes:
    """The request by which a node joins the run."""
    s, arrays = before.schedule, before.model.arrays
    rule = (s.seed, s.batch_size, s.epochs, s.steps)
    return packed(Hello(RUN, NONCE, exact(), *rule, True, DIGEST, None, arrays))


def asks(before: Round) -> list[bytes]:
    """The requests of the round: one exchange, or Mime's two."""
    algorithm, dialect = before.algorithm, affine.AffineDialect()
    points, message = algorithm.points(before.server), before.message
    work, broadcaster = _work(before), Broadcaster(PLAIN, jax.random.key(0))
    offers = [Offer(work, points, None, broadcaster), Offer(work, (), message, broadcaster)]
    requests = []
    for offer in offers if algorithm.waits else [Offer(work, points, message, broadcaster)]:
        kept = 1 if jax.tree.leaves(before.kept) else NEVER
        asked = POINTS if offer.points else NOTHING, offer.message is not None
        requests.append(dialect.request(Ask(RUN, before.number, NONCE, 0, *asked, -1, kept, 0), offer))
    return requests


def by_messages(before: Round, node: Node) -> Outcome:
    """The affine dialect, in as many exchanges as the algorithm needs."""
    affine.check(before.algorithm, PLAIN, before.server.x.tree)
    told = unpack(node.answer(greeting(before)), 0)
    assert told.kind == "profile", told
    frames = [unpack(node.answer(request), MOST) for request in asks(before)]
    assert {frame.kind for frame in frames} == {"answer"}, frames
    payload, last = b"".join(frame.payload for frame in frames), opened(frames[-1], Answer)
    rows = [flat(each) for each in before.model.unpack(payload, len(payload) // before.model.nbytes)]
    gradient = rows.pop(0) if before.algorithm.points(before.server) else flat(())
    return Outcome(gradient, rows[0], flat(rows[1:]), np.array([last.steps, last.loss, last.drift]))


def flat(tree: Any) -> np.ndarray:
    """All numbers of a pytree in one row."""
    return np.concatenate([np.zeros(0), *(np.ravel(leaf) for leaf in jax.tree.leaves(tree))])


def error(ours: Outcome, expected: Outcome, least: float = 1e-30) -> float:
    """The largest difference in units of the largest number, over gradients, updates and scalars.

    Args:
        least: the smallest unit. In single precision it is one, the order of the weights: their rounding shows in an
            update however short it is.
    """
    assert [part.shape for part in ours] == [part.shape for part in expected]
    parts = [(a, b) for a, b in zip(ours, expected, strict=True) if a.size]
    return max(float(np.abs(a - b).max() / max(np.abs(b).max(), least)) for a, b in parts)
