"""The seam between a round and the place where clients run.

A back end answers for clients and for nothing else: `round.py` asks it for gradients and for training, and does the
server's part itself. Every back end runs the same algorithm text and gives the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedmime.aggregation.aggregator import Aggregator, Broadcaster
from fedmime.aggregation.communication import Cost
from fedmime.aggregation.gate import Reason
from fedmime.algorithms.abstract import Anchor
from fedmime.algorithms.algorithm import Algorithm, Message
from fedmime.engine.cohort import Cohort
from fedmime.engine.memory import ClientMemory
from fedmime.vector import Vector

PROBE_STREAM = 1 << 30
"""Full gradients draw their random numbers from streams PROBE_STREAM + 0, 1, ...; local step k draws from stream k."""


class Work(NamedTuple):
    """One round's work for the clients, without data and without state that only the server may see."""

    algorithm: Algorithm
    """With this round's numbers in place of schedules."""
    round: int
    cohort: Cohort
    update_shares: np.ndarray
    """[members] w_i, the share of each member's update in the mean; a part keeps its shares of the whole."""
    gradient_shares: np.ndarray
    """[members] w_j, the share of each member's full gradient in the mean."""
    key: jax.Array
    """The round's random key, fold_in(run's key, round); a client uses fold_in(key, client, step)."""
    pick: int
    """The index of the local step whose iterate is sampled in this round, uniformly among those of the whole cohort; -1
    unless the algorithm `draws`."""
    wants_gradients: bool
    """Whether full gradients are asked for in this round."""
    anchor: Anchor
    """How local steps use gradient differences, so that phase 1 can record what phase 2 needs."""
    aggregator: Aggregator
    """What happens to the clients' messages before they are added or combined."""
    wants_losses: bool = False
    """Whether the losses of single clients are asked for, too, because the sampler looks at them."""
    prime: bool = False
    """Whether this is a gradient-only round, in which nobody trains."""

    def by_steps(self, random: bool) -> bool:
        """Whether full gradients go through the mini-batches of local steps, with the random numbers of those.

        With dropout, the difference of two gradients of a mini-batch is meaningful only under the same mask. Where it
        is possible, the mean gradient c uses these masks as well, so that corrections cancel exactly at the anchor.
        """
        return random and self.anchor.used and self.cohort.batches_cover_gradient


class Factors(Protocol):
    """What rebuilds an example's gradient at a fixed point; see `fedmime.models.problem.Factors`."""

    @property
    def record(self) -> Callable[..., tuple[jax.Array, Any]]: ...
    @property
    def mean_grad(self) -> Callable[..., Any]: ...
    @property
    def grad_difference(self) -> Callable[..., tuple[jax.Array, Any]]: ...


class Problem(Protocol):
    """What a back end needs of a problem; see `fedmime.models.problem.Problem`."""

    @property
    def name(self) -> str: ...
    @property
    def loss(self) -> Callable[[Any, Any, jax.Array], jax.Array]: ...
    @property
    def metrics(self) -> Callable[[Any, Any], dict[str, tuple[jax.Array, jax.Array]]]: ...
    @property
    def check(self) -> Callable[[Mapping[str, np.ndarray]], None]: ...
    @property
    def factors(self) -> Factors | None: ...
    @property
    def chunk(self) -> int: ...


class Scalars(NamedTuple):
    """Scalars that clients add up beside their messages."""

    weight: Any
    loss: Any
    drift: Any
    steps: Any
    weighted_steps: Any
    clients: Any
    unclipped: Any
    """Clients whose update was not clipped."""


class Totals(NamedTuple):
    """Sums over the clients of one part of the cohort whose replies were accepted."""

    send: Any
    """Σ wᵢ · Reply.send; `()` where `messages` has them one by one."""
    add: Any
    """Σ Reply.add"""
    scalars: Any
    """[7] the sums of `Scalars`, as one array, which is copied between devices faster than seven."""
    messages: ClientMessages | None = None
    """The clients' `Reply.send`, for a combiner that needs each of them."""


class ClientMessages(NamedTuple):
    """The messages of single clients, decoded, for a combiner that needs all of them at once."""

    values: Any
    """A pytree of arrays [clients, ...]; zeros for clients that were refused."""
    weights: Any
    """wᵢ [clients]; zero for clients that were refused."""


class Accepted:
    """Collects the accepted messages of single clients: their weighted sum or, for a combiner that is not linear, all
    of them.

    Args:
        linear: whether sums suffice.
        rows: fill up single messages to so many with zeros of weight zero, so that the server's program need not be
            compiled again when another number of clients replies.
    """

    def __init__(self, linear: bool, rows: int = 0) -> None:
        self._linear, self._rows, self.weight = linear, rows, 0.0
        self._messages: list[Any] = []
        self._weights: list[float] = []
        self._sum: Any = None
        self._beside: Any = None  # sums of what is not weighted

    def add(self, w: float, message: Any, *beside: Any) -> None:
        """Add a client's message with its weight; `beside` is added without it."""
        self.weight += w
        self._beside = beside if self._beside is None else jax.tree.map(jnp.add, self._beside, beside)
        if self._linear:
            term = jax.tree.map(lambda leaf: jnp.asarray(w, leaf.dtype) * leaf, message)
            self._sum = term if self._sum is None else jax.tree.map(jnp.add, self._sum, term)
        else:
            self._messages.append(message)
            self._weights.append(w)

    @property
    def collected(self) -> Any:
        """Σ w·message, or all messages as `ClientMessages`."""
        if self._linear:
            return self._sum
        missing = max(self._rows - len(self._messages), 0)
        padding = [jax.tree.map(jnp.zeros_like, self._messages[0])] * missing
        messages = jax.tree.map(lambda *leaves: jnp.stack(leaves), *self._messages, *padding)
        return ClientMessages(messages, jnp.asarray(self._weights + [0.0] * missing))

    @property
    def totals(self) -> Totals | None:
        """What was collected of updates, with sums of what clients add and of their scalars; None if there was none."""
        if self._beside is None:
            return None
        add, scalars = self._beside
        if self._linear:
            return Totals(self._sum, add, scalars)
        return Totals((), add, scalars, self.collected)


class Answer(NamedTuple):
    """What a back end answers. Arrays may still be computed on the devices; `refused` waits for them."""

    gradients: tuple[Any, ...]
    """For each point that was asked, Σ wⱼ ∇fⱼ(point), or the gradients of all clients as `ClientMessages`."""
    share: Any
    """Σ wⱼ of the clients in these sums: less than one where a client was left out."""
    totals: Totals | None
    """Sums of the replies; None where nobody trained."""
    clients: int
    """The number of members whose data could be used."""
    refused: Callable[[], Mapping[int, Reason]]
    """Clients that were left out of the sums, by position in the population, each with the reason."""
    unclipped: Any = 0
    """Clients whose gradients were not clipped."""
    strays: Sequence[Reason] = ()
    """Why messages of this round were refused that were no client's reply: replays, duplicates, unasked ones."""
    cancelled: bool = False
    """Whether too few clients reported for the round to be carried out."""
    losses: Callable[[], Mapping[int, float]] | None = None
    """If `Work.wants_losses`, the mean of the mini-batch losses before each local step of every client whose update was
    accepted, by position in the population; None of a back end that cannot say."""


class Backend(Protocol):
    """Where clients run. Back ends extend this class, whose defaults are those of a simulation in one process."""

    problem: Problem
    layout: str
    """How a cohort is divided, in words. Sums over other parts are rounded differently, in their last bits."""
    memory: ClientMemory | None = None
    """What clients keep between rounds, for algorithms whose clients keep anything. The round sets it before it asks,
    and finds the new values in it after `settle`."""
    broadcaster: Broadcaster | None = None
    """How the arrays that clients receive are encoded, for back ends that send them on. The round sets it, too."""

    def stored(self, blank: Any) -> Any:
        """Return the initial entry of the server's client memory.

        Back ends whose clients run in processes of the run return `blank`. A deployment, whose clients store their own
        state, returns the round number that stands for "never" instead.

        Args:
            blank: the state of a client before it first takes part.
        """
        return blank

    def noise_key(self, key: jax.Array) -> jax.Array:
        """Return the random key for privacy noise, given that of the round.

        By default it is the round's key. A deployment overrides this, because its clients know the round's key.
        """
        return key

    def traffic(self, cost: Cost, algorithm: Algorithm) -> Cost:
        """Return the bytes that a client sends and receives in a round.

        `cost` counts the encoded arrays. A back end whose protocol costs more, such as that of masked sums, adds it.
        """
        return cost

    def prepare(self, work: Work) -> None:
        """Read and lay out the data of a round ahead of time. Calling it is optional."""

    def ask(
        self, work: Work, points: tuple[Vector, ...] = (), message: Message | None = None, bound: Any = np.inf
    ) -> Answer:
        """Ask the cohort for full gradients at `points`, and if a `message` is given, for training from it.

        Phase 1 is the request for full gradients, phase 2 the request for training. Algorithms with `waits = True` need
        a call for each; those with `waits = False` combine both in one call. What phase 1 recorded of the gradients
        stays with the back end until phase 2 of the same round. A reply whose update is not finite or longer than
        `bound` is refused.
        """
        ...

    def settle(self, work: Work, accepted: bool) -> None:
        """End a round. Clients keep their new values only if the server accepted it."""
        ...

    def metrics(self, params: Any, batch: Mapping[str, np.ndarray]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """The value and the weight of every metric for each example of a batch."""
        ...

    def telemetry(self) -> Mapping[str, float]:
        """What the back end says about the last round beside its answer, by name, for the history.

        Names that begin with `seconds` are durations. They go to the timings of a run, which differ from run to run.
        """
        return {}

    def close(self) -> None:
        """Let go of processes and connections. The back end is not used afterwards."""


UNDRAWN = "an algorithm that looks at Client.pick must say so: draws = True, got draws = False"
