"""Base optimizers B = (U, V) on trees: the step is `x - eta * U(g, s)`, the statistics move by `s = V(g, s)`.

`U` reads only the statistics it is given (frozen); `ahead` is the whole optimizer applied to `(g, s)`: its new
statistics first, then the step from them (lookahead). Statistics are plain dicts: `{}` for sgd, `{"m"}` for momentum,
and `{"t", "m", "v"}` for the others, where `t` counts calls of V and `m` is carried (unused) when beta1 = 0.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .tree import Array, Tree

Statistics = dict[str, Any]


class Optimizer(NamedTuple):
    """`init(x) -> s`, frozen update `U(g, s)`, tracking `V(g, s)` and lookahead update `ahead(g, s)`."""

    init: Callable[[Tree], Statistics]
    U: Callable[[Tree, Statistics], Tree]
    V: Callable[[Tree, Statistics], Statistics]
    ahead: Callable[[Tree, Statistics], Tree]

    def step(self, apply: str) -> Callable[[Tree, Statistics], Tree]:
        """The update that goes by the name `apply`: "frozen" or "lookahead"."""
        return {"frozen": self.U, "lookahead": self.ahead}[apply]


def sgd() -> Optimizer:
    """U = g, no statistics."""

    def U(g: Tree, s: Statistics) -> Tree:
        return g

    return Optimizer(init=lambda x: {}, U=U, V=lambda g, s: s, ahead=U)


def momentum(beta: float = 0.9) -> Optimizer:
    """U = (1 - beta) g + beta m, which is also the new m."""

    def U(g: Tree, s: Statistics) -> Tree:
        return (1 - beta) * g + beta * s["m"]

    return Optimizer(init=lambda x: {"m": x.zeros()}, U=U, V=lambda g, s: {"m": U(g, s)}, ahead=U)


def nesterov(beta: float = 0.9) -> Optimizer:
    """m <- g + beta m; the step is g + beta m with the new m."""

    def V(g: Tree, s: Statistics) -> Statistics:
        return {"m": g + beta * s["m"]}

    def U(g: Tree, s: Statistics) -> Tree:
        return g + beta * V(g, s)["m"]

    return Optimizer(init=lambda x: {"m": x.zeros()}, U=U, V=V, ahead=U)


def _adaptive(
    beta1: float,
    start: Callable[[Tree], Any],
    accumulate: Callable[[Tree, Any, int], Any],
    denominator: Callable[[Any, int], Tree],
    bias_correction: bool = False,
    denominator_ahead: Callable[[Tree, Any, int], Tree] | None = None,
) -> Optimizer:
    """U = ((1 - beta1) g + beta1 m) / denominator(v).

    `accumulate(g, v, n)` is the n-th accumulator (n = 1 for the first V); `denominator(v, n)` reads an accumulator
    after n calls of V. A fresh accumulator is read as if n = 1. `denominator_ahead(g, v, n)`, if given, replaces the
    denominator of the lookahead step; v is then still the old accumulator.
    """

    def new_m(g: Tree, s: Statistics) -> Tree:
        return (1 - beta1) * g + beta1 * s["m"]

    def numerator(g: Tree, s: Statistics) -> Tree:
        return new_m(g, s) / (1 - beta1 ** (s["t"] + 1)) if bias_correction else new_m(g, s)

    def init(x: Tree) -> Statistics:
        return {"t": 0, "m": x.zeros(), "v": start(x)}

    def U(g: Tree, s: Statistics) -> Tree:
        return numerator(g, s) / denominator(s["v"], max(s["t"], 1))

    def V(g: Tree, s: Statistics) -> Statistics:
        n = s["t"] + 1
        return {"t": n, "m": new_m(g, s), "v": accumulate(g, s["v"], n)}

    def ahead(g: Tree, s: Statistics) -> Tree:
        n = s["t"] + 1
        if denominator_ahead is not None:
            return numerator(g, s) / denominator_ahead(g, s["v"], n)
        return numerator(g, s) / denominator(accumulate(g, s["v"], n), n)

    return Optimizer(init, U, V, ahead)


def _root(v: Tree, eps: float, floor: float) -> Tree:
    return v.map(lambda leaf: np.maximum(eps + np.sqrt(leaf), floor))


def adagrad(initial: float = 0.1, eps: float = 1e-7, floor: float = 0.0) -> Optimizer:
    """v accumulates g^2 from `initial`."""
    return _adaptive(
        beta1=0.0,
        start=lambda x: x.zeros() + initial,
        accumulate=lambda g, v, n: v + g * g,
        denominator=lambda v, n: _root(v, eps, floor),
    )


def adam(
    beta1: float = 0.9,
    beta2: float = 0.99,
    eps: float = 1e-7,
    initial: float = 0.0,
    bias_correction: bool = False,
    floor: float = 0.0,
) -> Optimizer:
    """v averages g^2 from `initial`; optionally m and v are divided by 1 - beta^n."""
    return _adaptive(
        beta1=beta1,
        start=lambda x: x.zeros() + initial,
        accumulate=lambda g, v, n: (1 - beta2) * (g * g) + beta2 * v,
        denominator=lambda v, n: _root(v / (1 - beta2**n) if bias_correction else v, eps, floor),
        bias_correction=bias_correction,
    )


def rmsprop(beta2: float = 0.99, eps: float = 1e-7, initial: float = 0.0, floor: float = 0.0) -> Optimizer:
    """v averages g^2 from `initial`; there is no first moment."""
    return _adaptive(
        beta1=0.0,
        start=lambda x: x.zeros() + initial,
        accumulate=lambda g, v, n: v.map(lambda v, g: v + (1 - beta2) * (g**2 - v), g),
        denominator=lambda v, n: _root(v, eps, floor),
    )


def yogi(beta1: float, beta2: float, eps: float, initial: float, floor: float = 0.0) -> Optimizer:
    """v moves towards g^2 by (1 - beta2) g^2, whatever the distance."""

    def accumulate(g: Tree, v: Tree, n: int) -> Tree:
        return v.map(lambda v, g: v - (1 - beta2) * np.sign(v - g**2) * g**2, g)

    return _adaptive(beta1, lambda x: x.zeros() + initial, accumulate, lambda v, n: _root(v, eps, floor))


def sm3(beta1: float, eps: float, floor: float = 0.0, lookahead: str = "accumulators") -> Optimizer:
    """SM3-II: `v[name]` is a list of one accumulator per axis (a scalar has one, without axes), all from 0.

    nu = min over axes + g^2; the new accumulator of an axis is the max of nu over the other axes. The frozen
    denominator reads the min over axes; the lookahead one reads the min over axes of the new accumulators or, with
    `lookahead="nu"`, nu itself, which is the same for scalars and vectors and never larger for matrices.
    """
    reads_nu = {"accumulators": False, "nu": True}[lookahead]

    def start(x: Tree) -> dict[str, list[Array]]:
        return {name: [np.zeros(n) for n in leaf.shape] or [np.zeros(())] for name, leaf in x.items()}

    def cover(v: dict[str, list[Array]]) -> Tree:
        """Broadcast every axis to the full shape and take the min."""
        return Tree({name: _outer_min(axes) for name, axes in v.items()})

    def fresh(g: Tree, v: dict[str, list[Array]], n: int) -> Tree:
        return cover(v) + g * g

    def accumulate(g: Tree, v: dict[str, list[Array]], n: int) -> dict[str, list[Array]]:
        return {name: _axis_max(leaf) for name, leaf in fresh(g, v, n).items()}

    return _adaptive(
        beta1,
        start,
        accumulate,
        denominator=lambda v, n: _root(cover(v), eps, floor),
        denominator_ahead=(lambda g, v, n: _root(fresh(g, v, n), eps, floor)) if reads_nu else None,
    )


def _outer_min(axes: list[Array]) -> Array:
    out = axes[0]
    for axis in axes[1:]:
        out = np.minimum(out[..., None], axis)
    return out


def _axis_max(nu: Array) -> list[Array]:
    axes = range(nu.ndim)
    return [nu.max(axis=tuple(other for other in axes if other != axis)) for axis in axes] or [nu]


def adafactor(beta1: float, decay: float = 0.8, eps: float = 1e-30, floor: float = 0.0) -> Optimizer:
    """Factored second moments over the last two axes; `v[name]` is `(row, col)`, or `(v,)` with fewer axes.

    The n-th call of V averages g^2 + eps with beta2 = 1 - n^-decay. The denominator is max(sqrt(v), floor): nothing is
    added to the root and the update is not clipped. Before the first V the estimate is 0, so U then needs a floor.
    """

    def factors(q: Array) -> tuple[Array, ...]:
        return (q.mean(axis=-1), q.mean(axis=-2)) if q.ndim >= 2 else (q,)

    def estimate(parts: tuple[Array, ...]) -> Array:
        if len(parts) == 1:
            return parts[0]
        row, col = parts
        scale = row.mean(axis=-1, keepdims=True)
        share = np.divide(row, scale, out=np.zeros_like(row), where=scale > 0)
        return share[..., :, None] * col[..., None, :]

    def accumulate(g: Tree, v: dict[str, tuple[Array, ...]], n: int) -> dict[str, tuple[Array, ...]]:
        beta2 = 1 - float(n) ** -decay
        return {
            name: tuple(
                beta2 * old + (1 - beta2) * new for old, new in zip(v[name], factors(leaf**2 + eps), strict=True)
            )
            for name, leaf in g.items()
        }

    return _adaptive(
        beta1,
        start=lambda x: {name: factors(np.zeros_like(leaf)) for name, leaf in x.items()},
        accumulate=accumulate,
        denominator=lambda v, n: _root(Tree({name: estimate(parts) for name, parts in v.items()}), 0.0, floor),
    )
