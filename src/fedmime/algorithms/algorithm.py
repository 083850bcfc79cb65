"""What an algorithm is: the messages of one round and what each side makes of them.

A round: the server asks for the cohort's mean full gradient at `points`, `broadcast`s a message, every client runs
`local` on it, and the server folds the mean of the replies into its state. Choosing clients, mapping over them,
weighing and averaging belong to the engine, so one text serves one process, a cluster and a deployment.
What is sent is exactly what `points`, `broadcast` and `local` return, so communication is counted, not declared.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp

from fedmime.hyperparameters import at_round
from fedmime.validation import floating
from fedmime.vector import Vector

Carry = TypeVar("Carry")
Server = Any  # an algorithm's own state: a NamedTuple with the server model `x` first
Message = Any


class Batch(NamedTuple):
    """One mini-batch, opaque to algorithms but for its place in the client's sequence."""

    index: jax.Array  # k: 0 for the client's first step
    handle: Any


class Client(Protocol):
    """What a client offers to `Algorithm.local`."""

    kept: Any
    """What this client kept when it last took part; `Algorithm.remember` before that."""
    steps: jax.Array
    """K_i, the number of local steps it will take."""

    @property
    def pick(self) -> jax.Array:
        """The index of this client's local step whose iterate is sampled in this round, or -1.

        One step of the whole cohort is sampled uniformly, so only the client that takes it has an index. Only an
        algorithm that sets `draws` may use it.
        """
        ...

    def grad(self, y: Vector, batch: Batch) -> Vector:
        """∇fᵢ(y; ζ), the gradient of a mini-batch ζ at y."""
        ...

    def grad_difference(self, y: Vector, x: Vector, batch: Batch) -> Vector:
        """∇fᵢ(y; ζ) − ∇fᵢ(x; ζ) on the same mini-batch ζ and with the same random numbers.

        Where x is one of the algorithm's `points`, an engine may use what it recorded of the full gradient at x
        instead of computing the second gradient.
        """
        ...

    def descend(self, step: Callable[[Carry, Batch], Carry], start: Carry) -> Carry:
        """Run `step` over the client's mini-batches. The carry is y, or a tuple that begins with y."""
        ...


class Reply(NamedTuple):
    """What a client answers."""

    send: Any = ()  # averaged over the cohort with the clients' weights
    add: Any = ()  # summed over the cohort, unweighted
    keep: Any = ()  # stays with the client


class Replies(NamedTuple):
    """The cohort's replies, aggregated. The server sees nothing else of them."""

    mean: Any  # of Reply.send
    total: Any  # of Reply.add
    population: jax.Array  # N
    steps: jax.Array  # local steps of the whole cohort
    mean_steps: jax.Array  # K: local steps of a client, its weight counted
    coin: Any  # the round's uniform random number, for the server's own choices; None unless the algorithm `draws`


class State(NamedTuple):
    """What a run carries from round to round."""

    round: int
    server: Server
    memory: Any = None  # what clients kept, for algorithms whose clients keep anything
    aggregation: Any = ()  # privacy accounting and clipping norms of the aggregator; () without privacy
    losses: Any = ()  # the clients' last losses [clients], NaN where unknown, for samplers that look at them
    repeats: int = 0  # gradient-only rounds that were abandoned; each is followed by one more

    @property
    def x(self) -> Vector:
        """The server model."""
        return self.server.x

    def primes(self, algorithm: Algorithm) -> bool:
        """Whether the next round is a gradient-only one."""
        return self.round < algorithm.gradient_rounds + self.repeats


def params(state: State) -> Any:
    """The server model as the plain pytree that went in."""
    return state.server.x.tree


@jax.jit
def _start(algorithm: Algorithm, x: Vector) -> Server:
    """`Algorithm.start` as one program instead of one for each operation and shape."""
    return algorithm.start(x)


class Algorithm(abc.ABC):
    """The base of all algorithms. Subclasses are recipes: numbers are leaves, modes are static."""

    split: bool = False
    """Whether gradients and updates come from two disjoint halves of the cohort."""
    gradient_rounds: int = 0
    """The number of gradient-only rounds at the start of a run, abandoned ones not counted. In such a round clients
    send full gradients and do not train, and the server updates its state by `prime`; it counts as a round and as
    communication."""
    local_steps: ClassVar[bool] = True
    """Whether clients train at all."""
    waits: ClassVar[bool] = False
    """Whether clients need the mean gradient c before they train, which takes a second exchange in a round. True for
    Mime, False for MimeLite."""
    counts_steps: ClassVar[bool] = False
    """Whether the server looks at `Replies.mean_steps`, which noise for privacy does not cover."""
    draws: bool = False
    """Whether the algorithm uses `Client.pick` or `Replies.coin`."""
    pooled: ClassVar[bool] = False
    """Whether it runs on the pooled data instead of on clients."""

    def init(self, params: Any) -> State:
        """The state before the first round, from a model's plain pytree."""
        floating(type(self).__name__, "params", params)
        return State(0, _start(at_round(self, 0), Vector(jax.tree.map(jnp.asarray, params))))

    @abc.abstractmethod
    def start(self, x: Vector) -> Server:
        """The server's state around its first model."""

    def points(self, server: Server) -> tuple[Vector, ...]:
        """Where the cohort's mean full gradient is wanted; the engine gives one vector h for each."""
        return ()

    def prime_points(self, server: Server) -> tuple[Vector, ...]:
        """Where the mean full gradient is wanted in gradient-only rounds; by default at `points`."""
        return self.points(server)

    def prime(self, server: Server, h: tuple[Vector, ...], seen: jax.Array) -> Server:
        """The server's state after a gradient-only round, before which `seen` such rounds were accepted."""
        raise AssertionError(f"{type(self).__name__} has no gradient-only rounds")

    def broadcast(self, server: Server, h: tuple[Vector, ...]) -> Message:
        """What the clients that train are sent."""
        return (server.x,)

    def exact(self, message: Message) -> Any:
        """The part of a message that must not be compressed: a small error in it would do great harm."""
        return ()

    def remember(self, x: Vector) -> Any:
        """The state of a client before it first takes part: nothing, or zeros shaped like the model."""
        return ()

    def local(self, message: Message, client: Client) -> Reply:
        """What one client computes."""
        raise AssertionError(f"{type(self).__name__} has no local steps")

    @abc.abstractmethod
    def server(self, server: Server, h: tuple[Vector, ...], replies: Replies) -> Server:
        """The server's state after the round."""

    @property
    def remedy(self) -> str:
        """What to do about a run that has diverged, for the message that ends it."""
        return "lower eta"

    def deviation(self, server: Server, h: tuple[Vector, ...], replies: Replies) -> Vector | None:
        """The error e for which the clients' mean movement equals -K η U(c + e, s); None if it is not defined.

        Here c is the mean full gradient and K the weighted mean of the clients' numbers of local steps.
        """
        return None
