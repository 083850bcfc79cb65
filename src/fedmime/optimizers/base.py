r"""A base optimizer $\mathcal{B} = (U, V)$: the step $x \gets x - \eta\,U(g, s)$, the statistics $s \gets V(g, s)$.

Keeping the two apart is what lets a client apply the server's statistics without moving them.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple, ParamSpec, TypeVar

from fedmime.errors import ConfigError
from fedmime.numbers import Value, choice, quote, recipe, static
from fedmime.vector import Vector, at_least, full, sqrt, zeros

Statistics = Any
Apply = Literal["frozen", "lookahead"]
Direction = Callable[[Vector, Statistics, Vector], Vector]
RoundDirection = Callable[[Vector, Vector], Vector]
P = ParamSpec("P")
T = TypeVar("T")


class BaseOptimizer(abc.ABC):
    """What every base optimizer offers. Subclasses are recipes: their numbers are pytree leaves."""

    linear: ClassVar[bool] = True
    """Whether `update` is linear in g for fixed statistics (up to the constant momentum part)."""
    entrywise: ClassVar[bool] = True
    """Whether every entry of `update` depends on the same entry of g alone."""
    adaptive: ClassVar[bool] = False
    """Whether `update` divides by its statistics, so that they must have seen a gradient first."""

    @abc.abstractmethod
    def init(self, x: Vector) -> Statistics:
        """The statistics before the first gradient."""

    @abc.abstractmethod
    def update(self, g: Vector, s: Statistics) -> Vector:
        """U(g, s): the direction, from the given statistics alone."""

    @abc.abstractmethod
    def track(self, g: Vector, s: Statistics) -> Statistics:
        """V(g, s): the statistics after gradient g."""

    def track_at(self, g: Vector, s: Statistics, x: Vector) -> Statistics:
        """V(g, s) for a gradient taken at x, which transformations with weight decay look at. By default V(g, s)."""
        del x
        return self.track(g, s)

    def ahead(self, g: Vector, s: Statistics, x: Vector) -> Vector:
        """The direction the whole optimizer would take on (g, s): statistics first, step after. By default U(g, s)."""
        del x  # the point reached so far, for transformations with weight decay
        return self.update(g, s)

    def fixed(self, s: Statistics, x: Vector, c: Vector | None = None) -> Callable[[Vector], Vector]:
        """The map g ↦ U(c + g, s) for models like x. Optimizers compute here, once, what no step changes."""
        return lambda g: self.update(g if c is None else c + g, s)

    def from_server(self, apply: str, s: Statistics, x: Vector, c: Vector | None = None) -> RoundDirection:
        """The map (g, y) ↦ U(c + g, s) that clients at y apply while the server's statistics s stay as they are."""
        if apply == "frozen":
            U = self.fixed(s, x, c)
            return lambda g, _: U(g)
        return lambda g, y: self.ahead(g if c is None else c + g, s, y)

    def direction(self, apply: str) -> Direction:
        """How a client applies this optimizer: `frozen` uses s as it is, `lookahead` the whole optimizer from s."""
        return self.ahead if apply == "lookahead" else lambda g, s, _: self.update(g, s)


class AdaptiveState(NamedTuple):
    """Statistics of an adaptive optimizer; what it does not need is None and takes no room on the wire."""

    m: Any
    v: Any
    count: Any = None


class Adaptive(BaseOptimizer):
    r"""Optimizers that divide by the root of an accumulator of squares.

    $U(g, s) = ((1-\beta_1) g + \beta_1 m) / \max(\epsilon + \sqrt v,\ \text{floor})$; a subclass says how `v` grows.
    """

    adaptive: ClassVar[bool] = True
    eps: Value
    floor: Value

    @abc.abstractmethod
    def accumulate(self, g: Vector, s: AdaptiveState) -> Any:
        """The accumulator after gradient g."""

    def smooth(self, g: Vector, s: AdaptiveState) -> Vector:
        """The numerator of U: the gradient, or its moving average in optimizers that keep one."""
        return g

    def read(self, v: Any, like: Vector) -> Vector:
        """The accumulator of every weight, for subclasses that store it in another form."""
        return v

    @property
    def share(self) -> Value:
        """The weight of the gradient itself in the numerator."""
        return 1.0

    def denominator(self, s: AdaptiveState, like: Vector) -> Vector:
        """What U divides by, never less than `floor`."""
        return at_least(sqrt(self.read(s.v, like)) + self.eps, self.floor)

    def update(self, g: Vector, s: AdaptiveState) -> Vector:
        return self.smooth(g, s) / self.denominator(s, g)

    def fixed(self, s: AdaptiveState, x: Vector, c: Vector | None = None) -> Callable[[Vector], Vector]:
        offset, scale = self.update(zeros(x) if c is None else c, s), self.share / self.denominator(s, x)
        return lambda g: offset + scale * g

    def track(self, g: Vector, s: AdaptiveState) -> AdaptiveState:
        count = None if s.count is None else s.count + 1
        return AdaptiveState(m=None if s.m is None else self.smooth(g, s), v=self.accumulate(g, s), count=count)

    def ahead(self, g: Vector, s: AdaptiveState, x: Vector) -> Vector:
        return self.update(g, s._replace(v=self.accumulate(g, s)))


class Averaging(Adaptive):
    r"""Adaptive optimizers whose numerator is a moving average of gradients, $(1-\beta_1) g + \beta_1 m$."""

    beta1: Value
    initial: Value

    def init(self, x: Vector) -> AdaptiveState:
        return AdaptiveState(m=zeros(x), v=full(x, self.initial))

    @property
    def share(self) -> Value:
        return 1 - self.beta1

    def smooth(self, g: Vector, s: AdaptiveState) -> Vector:
        return (1 - self.beta1) * g + self.beta1 * s.m


@recipe
class Custom(BaseOptimizer):
    """A base optimizer of the user's own functions."""

    entrywise: ClassVar[bool] = False

    init_function: Callable[[Vector], Statistics] = static()
    update_function: Callable[[Vector, Statistics], Vector] = static()
    track_function: Callable[[Vector, Statistics], Statistics] = static()

    def init(self, x: Vector) -> Statistics:
        return self.init_function(x)

    def update(self, g: Vector, s: Statistics) -> Vector:
        return self.update_function(g, s)

    def track(self, g: Vector, s: Statistics) -> Statistics:
        return self.track_function(g, s)


def custom(
    init: Callable[[Vector], Statistics],
    update: Callable[[Vector, Statistics], Vector],
    track: Callable[[Vector, Statistics], Statistics],
) -> BaseOptimizer:
    """A base optimizer from three functions, `update` linear in g. See `BaseOptimizer` for what each returns."""
    for name, function in (("init", init), ("update", update), ("track", track)):
        if not callable(function):
            raise ConfigError(f"custom: {name} must be a function, got {function!r}")
    return Custom(init, update, track)


def base_optimizer(owner: str, name: str, value: Any) -> BaseOptimizer:
    """Check that an argument is a base optimizer."""
    if isinstance(value, BaseOptimizer):
        return value
    such = "from_optax(optax.adam(1e-2))" if is_optax(value) else "momentum(0.9)"
    raise ConfigError(f"{owner}: {name} must be a base optimizer such as fm.optimizers.{such}, got {quote(value)}")


def is_optax(value: Any) -> bool:
    """Whether a value has the two functions of an optax transformation."""
    return callable(getattr(value, "init", None)) and callable(getattr(value, "update", None))


def takes_base(factory: Callable[P, T]) -> Callable[P, T]:
    """Check the base optimizer that a factory takes first, even if others of its arguments are missing.

    An optax transformation has its rate inside, so whoever gives one as it is may well leave `eta` out.
    """

    @functools.wraps(factory)
    def made(*args: P.args, **kwargs: P.kwargs) -> T:
        if args or "base" in kwargs:
            base_optimizer(factory.__name__, "base", args[0] if args else kwargs["base"])
        return factory(*args, **kwargs)

    return made


def application(owner: str, base: BaseOptimizer, apply: str | None) -> str:
    """The way to apply a base: as asked, else `frozen` where U is linear and `lookahead` where it cannot be."""
    if apply is None:
        return "frozen" if base.linear else "lookahead"
    choice(owner, "apply", apply, ("frozen", "lookahead"))
    if apply == "frozen" and not base.linear:
        raise ConfigError(
            f"{owner}: apply='frozen' needs a base with U linear in g; use apply='lookahead' with from_optax"
        )
    return apply
