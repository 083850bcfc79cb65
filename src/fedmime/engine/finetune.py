"""Fine-tuning: a model for every client, after a few steps of SGD on the client's own examples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedmime.aggregation.gate import Reason
from fedmime.algorithms.abstract import Anchor
from fedmime.algorithms.algorithm import Algorithm, Client, Replies, Reply
from fedmime.engine.backends.backend import Backend
from fedmime.engine.cohort import Cohort, Member, client_id, with_starts
from fedmime.engine.memory import RamMemory
from fedmime.engine.sampling import PopulationSource, Schedule
from fedmime.engine.work import run_key, work_of
from fedmime.errors import Diverged
from fedmime.hyperparameters import Value, number, recipe
from fedmime.validation import POSITIVE
from fedmime.vector import Vector, nbytes, zeros

_MOST_CLIENTS = 64  # that are trained in one call of the back end
_MOST_BYTES = 256 << 20  # of their models, which are in memory together


class Finetuning(NamedTuple):
    """How clients are fine-tuned: `steps` steps of SGD at rate `eta` on mini-batches of their own training examples."""

    steps: int
    eta: float
    batch_size: int | None
    """Examples in a mini-batch; None takes all of a client's examples at every step."""
    seed: int
    """Of mini-batches, of the random numbers of the loss, and of what is held out."""


class _Server(NamedTuple):
    x: Vector


@recipe
class LocalSGD(Algorithm):
    """Clients take y ← y − η ∇fᵢ(y; ζ) from the server model, keep y and send nothing."""

    eta: Value = number(POSITIVE)

    def start(self, x: Vector) -> _Server:
        return _Server(x)

    def remember(self, x: Vector) -> Vector:
        return zeros(x)

    def local(self, message: tuple[Vector], client: Client) -> Reply:
        (x,) = message
        return Reply(keep=client.descend(lambda y, batch: y - self.eta * client.grad(y, batch), x))

    def server(self, server: _Server, h: tuple[Vector, ...], replies: Replies) -> _Server:
        return server


def group_size(params: Any) -> int:
    """How many clients are trained in one call of a back end."""
    return max(1, min(_MOST_CLIENTS, _MOST_BYTES // max(nbytes(params), 1)))


def schedule_of(tuning: Finetuning, params: Any) -> Schedule:
    """How clients draw their mini-batches: as in round 0 of a run with the same seed."""
    return Schedule(group_size(params), tuning.batch_size, None, tuning.steps, tuning.seed, "uniform")


def tuned_models(
    backend: Backend, params: Any, population: Any, positions: np.ndarray, tuning: Finetuning
) -> Iterator[Any | None]:
    """The model of each client after fine-tuning, in the order of the positions; None where its data was refused.

    The models of no more than one group of clients are in memory at a time. A client's model does not depend on which
    others are asked for.

    Raises:
        Diverged: a client's model is not finite.
    """
    algorithm, x = LocalSGD(tuning.eta), Vector(jax.tree.map(jnp.asarray, params))
    schedule, blank, key = schedule_of(tuning, params), jax.tree.map(np.zeros_like, x), run_key(tuning.seed)
    width = tuning.batch_size or int(population.sizes[positions].max())  # of all groups, which share one program
    for start in range(0, len(positions), schedule.cohort_size):
        group = positions[start : start + schedule.cohort_size]
        work = work_of(algorithm, Anchor(), 0, _cohort(schedule, population, group, width), key)
        backend.memory = RamMemory(blank)
        refused = backend.ask(work, (), (x,)).refused()
        for client, reason in refused.items():
            if reason is not Reason.DATA:
                name = client_id(getattr(population, "ids", None), client)
                words = f"fine-tuning with eta={tuning.eta:g} gave client {name!r} a model that is not finite"
                raise Diverged(f"evaluate: {words}; lower finetune_eta")
        backend.settle(work, accepted=True)
        for client, model in zip(group.tolist(), backend.memory.read(group.tolist()), strict=True):
            yield None if client in refused else model.tree


def _cohort(schedule: Schedule, population: Any, positions: np.ndarray, width: int) -> Cohort:
    """Some clients of a population, all of whom train; `width` is that of the widest mini-batch of all clients."""
    sizes = population.sizes[positions]
    steps = schedule.lengths(sizes)
    members = [
        Member(int(i), int(n), int(k), 0, sends_gradient=False) for i, n, k in zip(positions, sizes, steps, strict=True)
    ]
    return Cohort(
        with_starts(members),
        len(population.sizes),
        PopulationSource(schedule, population, 0, positions),
        batch_size=width,
        each_once=False,
        ids=getattr(population, "ids", None),
    )
