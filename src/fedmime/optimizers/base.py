r"""A base optimizer $\mathcal{B} = (U, V)$: the step $x \gets x - \eta\,U(g, s)$ and the statistics $s \gets V(g, s)$.

Keeping the two apart is what lets a client apply the server's statistics without changing them. There are two ways to
apply a base: `"frozen"` uses U with the statistics as they are, as the paper does; `"lookahead"` runs the whole
optimizer from them, statistics first and step after, and discards the new statistics.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple, ParamSpec, TypeVar

from fedmime.errors import ConfigError
from fedmime.hyperparameters import Value, number, recipe, static
from fedmime.validation import NON_NEGATIVE, UNIT, choice, function, quote
from fedmime.vector import Vector, at_least, full, sqrt, zeros

Statistics = Any
Apply = Literal["frozen", "lookahead"]
Direction = Callable[[Vector, Statistics, Vector], Vector]
RoundDirection = Callable[[Vector, Vector], Vector]
P = ParamSpec("P")
T = TypeVar("T")
Affine = tuple[Any, Vector]  # (scale, offset) of U(g, s) = scale ⊙ g + offset; the scale is a number or a vector


class BaseOptimizer(abc.ABC):
    """The interface of base optimizers. Subclasses are recipes: their numbers are pytree leaves.

    Gradients, models and directions are of the class `Vector`; statistics are any pytree.
    """

    linear: ClassVar[bool] = True
    """Whether `update` is linear in g for fixed statistics, up to a constant (the momentum)."""
    compressible: ClassVar[bool] = False
    """Whether a small error in the statistics moves U only a little, as for momentum; `update` must not divide."""
    adaptive: ClassVar[bool] = False
    """Whether `update` divides by its statistics, which must then have seen a gradient before the first step."""

    @abc.abstractmethod
    def init(self, x: Vector) -> Statistics:
        """The statistics before the first gradient, for models shaped like x."""

    @abc.abstractmethod
    def update(self, g: Vector, s: Statistics) -> Vector:
        """U(g, s): the direction of a step, from the gradient and the given statistics alone."""

    @abc.abstractmethod
    def track(self, g: Vector, s: Statistics) -> Statistics:
        """V(g, s): the statistics after the gradient g."""

    def track_at(self, g: Vector, s: Statistics, x: Vector) -> Statistics:
        """V(g, s) for a gradient taken at the point x, which optax transformations with weight decay need.

        By default V(g, s).
        """
        del x
        return self.track(g, s)

    def ahead(self, g: Vector, s: Statistics, x: Vector) -> Vector:
        """The direction of the whole optimizer at the point x: the statistics are updated first. By default U(g, s)."""
        del x  # the point reached so far, for transformations with weight decay
        return self.update(g, s)

    def affine(self, s: Statistics, x: Vector) -> Affine | None:
        """The pair (scale, offset) with U(g, s) = scale ⊙ g + offset, or None where U has no such form.

        Args:
            s: the statistics.
            x: a model, of which the shapes matter.


        While the server's statistics are fixed, this pair is all that a client needs to know of the optimizer. It is
        computed once a round, so that a local step costs a multiplication and an addition.
        """
        del s, x
        return None

    def for_round(self, apply: str, s: Statistics, x: Vector) -> RoundDirection:
        """The map (g, y) ↦ direction that clients apply while the server's statistics s are fixed.

        Args:
            apply: `"frozen"` or `"lookahead"`.
            s: the server's statistics.
            x: the server model, of which the shapes matter.
        """
        if apply == "lookahead":
            return lambda g, y: self.ahead(g, s, y)
        affine = self.affine(s, x)
        if affine is None:
            return lambda g, _: self.update(g, s)
        scale, offset = affine
        return lambda g, _: scale * g + offset

    def direction(self, apply: str) -> Direction:
        """The map (g, s, x) ↦ direction for `apply`, for algorithms whose statistics change from step to step."""
        return self.ahead if apply == "lookahead" else lambda g, s, _: self.update(g, s)


class AdaptiveState(NamedTuple):
    """The statistics of an adaptive optimizer. What an optimizer does not need is None and is not sent.

    Attributes:
        m: moving average of gradients.
        v: accumulator of squared gradients, in the optimizer's own form.
        count: number of gradients seen, a scalar.
    """

    m: Any
    v: Any
    count: Any = None


@recipe
class Adaptive(BaseOptimizer):
    r"""Optimizers that divide by the root of an accumulator of squared gradients.

    $U(g, s) = ((1-\beta_1) g + \beta_1 m) / \max(\epsilon + \sqrt v,\ \text{floor})$; a subclass defines how v grows,
    and may leave m out.
    """

    adaptive: ClassVar[bool] = True
    eps: Value = number(NON_NEGATIVE)
    floor: Value = number(NON_NEGATIVE)

    @abc.abstractmethod
    def accumulate(self, g: Vector, s: AdaptiveState) -> Any:
        """The accumulator v after the gradient g."""

    def smooth(self, g: Vector, s: AdaptiveState) -> Vector:
        """The numerator of U: the gradient, or its moving average in optimizers that keep one."""
        return g

    def read(self, v: Any, like: Vector) -> Vector:
        """The accumulator as one number per weight, for subclasses that store it in another form.

        Args:
            v: the accumulator as stored.
            like: a vector with the shapes of the model.
        """
        return v

    def denominator(self, s: AdaptiveState, like: Vector) -> Vector:
        """The denominator of U, max(ε + √v, floor)."""
        return at_least(sqrt(self.read(s.v, like)) + self.eps, self.floor)

    def update(self, g: Vector, s: AdaptiveState) -> Vector:
        return self.smooth(g, s) / self.denominator(s, g)

    def affine(self, s: AdaptiveState, x: Vector) -> Affine:
        """The pair (scale, offset) of U, which is linear in (g, m): U at (1, 0), and U at (0, m)."""
        still = s if s.m is None else s._replace(m=zeros(x))
        return self.update(full(x, 1.0), still), self.update(zeros(x), s)

    def track(self, g: Vector, s: AdaptiveState) -> AdaptiveState:
        count = None if s.count is None else s.count + 1
        return AdaptiveState(m=None if s.m is None else self.smooth(g, s), v=self.accumulate(g, s), count=count)

    def ahead(self, g: Vector, s: AdaptiveState, x: Vector) -> Vector:
        return self.update(g, s._replace(v=self.accumulate(g, s)))


@recipe
class Elementwise(Adaptive):
    """Adaptive optimizers with one accumulator per weight, which starts from the number `initial`."""

    initial: Value = number(NON_NEGATIVE)

    def init(self, x: Vector) -> AdaptiveState:
        return AdaptiveState(m=None, v=full(x, self.initial))


@recipe
class Averaging(Elementwise):
    r"""Elementwise optimizers whose numerator is the moving average of gradients $(1-\beta_1) g + \beta_1 m$."""

    beta1: Value = number(UNIT)

    def init(self, x: Vector) -> AdaptiveState:
        return super().init(x)._replace(m=zeros(x))

    def smooth(self, g: Vector, s: AdaptiveState) -> Vector:
        return (1 - self.beta1) * g + self.beta1 * s.m


@recipe
class Custom(BaseOptimizer):
    """A base optimizer made of the user's own functions, see `custom`."""

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
    """A base optimizer from three functions.

    Args:
        init: `init(x)` returns the statistics before the first gradient.
        update: `update(g, s)` returns the direction U(g, s), which must be linear in g up to a constant.
        track: `track(g, s)` returns the new statistics V(g, s).
    """
    for name, value in (("init", init), ("update", update), ("track", track)):
        function("custom", name, value)
    return Custom(init, update, track)


def base_optimizer(owner: str, name: str, value: Any) -> BaseOptimizer:
    """Check that an argument is a base optimizer; the error says how an optax transformation becomes one."""
    if isinstance(value, BaseOptimizer):
        return value
    such = "from_optax(optax.adam(1e-2))" if is_optax(value) else "momentum(0.9)"
    raise ConfigError(f"{owner}: {name} must be a base optimizer such as fm.optimizers.{such}, got {quote(value)}")


def is_optax(value: Any) -> bool:
    """Whether a value has the two functions of an optax transformation, `init` and `update`."""
    return callable(getattr(value, "init", None)) and callable(getattr(value, "update", None))


def takes_base(factory: Callable[P, T]) -> Callable[P, T]:
    """Decorate a factory whose first argument is a base optimizer, so that this is checked before anything else.

    The learning rate of an optax transformation is inside of it. Somebody who passes one directly may well leave `eta`
    out, and should read that `from_optax` is missing and not that `eta` is.
    """

    @functools.wraps(factory)
    def made(*args: P.args, **kwargs: P.kwargs) -> T:
        if args or "base" in kwargs:
            base_optimizer(factory.__name__, "base", args[0] if args else kwargs["base"])
        return factory(*args, **kwargs)

    return made


def application(owner: str, base: BaseOptimizer, apply: str | None) -> str:
    """How a base is applied: as asked, by default `"frozen"` where U is linear in g and `"lookahead"` otherwise.

    Raises:
        ConfigError: `apply` is neither of them, or `"frozen"` for a base whose U is not linear.
    """
    if apply is None:
        return "frozen" if base.linear else "lookahead"
    choice(owner, "apply", apply, ("frozen", "lookahead"))
    if apply == "frozen" and not base.linear:
        raise ConfigError(
            f"{owner}: apply='frozen' needs a base with U(g, s) linear in g; this one needs apply='lookahead'"
        )
    return apply
