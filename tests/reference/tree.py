"""Models as named float64 arrays that add, subtract and scale."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


class Tree(dict[str, Array]):
    """A dict of float64 arrays with leaf-wise arithmetic, with a number or a dict of the same names."""

    def __init__(self, leaves: Mapping[str, Any]):
        super().__init__({name: np.asarray(leaf, dtype=np.float64) for name, leaf in leaves.items()})

    def map(self, f: Callable[..., Any], *others: Mapping[str, Any]) -> Tree:
        """Apply `f` leaf by leaf to this tree and to `others`, which must have the same names."""
        for other in others:
            if other.keys() != self.keys():
                raise ValueError(f"trees differ in names: {sorted(self)} and {sorted(other)}")
        return Tree({name: f(leaf, *(other[name] for other in others)) for name, leaf in self.items()})

    def zeros(self) -> Tree:
        """The zero of this tree's shapes."""
        return self.map(np.zeros_like)

    def _binary(self, f: Callable[[Any, Any], Any], other: Mapping[str, Any] | float) -> Tree:
        return self.map(f, other) if isinstance(other, Mapping) else self.map(lambda leaf: f(leaf, other))

    def __add__(self, other: Mapping[str, Any] | float) -> Tree:
        return self._binary(operator.add, other)

    def __sub__(self, other: Mapping[str, Any] | float) -> Tree:
        return self._binary(operator.sub, other)

    def __mul__(self, other: Mapping[str, Any] | float) -> Tree:
        return self._binary(operator.mul, other)

    def __rmul__(self, other: float) -> Tree:
        return self * other

    def __truediv__(self, other: Mapping[str, Any] | float) -> Tree:
        return self._binary(operator.truediv, other)


def weighted_sum(weights: Iterable[float], trees: Iterable[Tree]) -> Tree:
    """`sum_i w_i tree_i` over at least one tree."""
    terms = [w * tree for w, tree in zip(weights, trees, strict=True)]
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def flatten(tree: Mapping[str, Any]) -> Array:
    """All leaves in one vector, by sorted name."""
    return np.concatenate([np.ravel(tree[name]) for name in sorted(tree)])
