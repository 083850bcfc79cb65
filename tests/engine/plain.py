"""A round without an engine: Python loops over clients and steps, no padding, one gradient after another.

Only the random numbers follow the engine's rules, which are part of what it promises: a step's come from
(key, round, client, step); a full gradient's from (key, round, client, chunk), or from the steps themselves where the
mini-batches go through the data once.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedmime.engine.cohort import Cohort, Member
from fedmime.engine.gradients import PROBE_STREAM


class Plain:
    """Gradients of a problem on the clients of a cohort, in float64."""

    def __init__(self, problem: Any, cohort: Cohort, key: jax.Array, t: int, once: bool) -> None:
        self.problem, self.cohort, self.once = problem, cohort, once
        self.key = jax.random.fold_in(key, t)
        self.weights = [m.size / sum(n.size for n in cohort.members) for m in cohort.members]
        self._grad = jax.jit(jax.grad(lambda p, batch, key: problem.loss(p, batch, key).mean()))

    def step(self, member: Member, k: int, params: Any) -> Any:
        """∇f_i(params; ζ_k)."""
        assert member.rows is not None
        assert member.counts is not None
        rows = member.rows[k, : member.counts[k]]
        key = jax.random.fold_in(jax.random.fold_in(self.key, member.index), k)
        return self._grad(params, {name: a[rows] for name, a in member.data.items()}, key)

    def full(self, params: Any) -> Any:
        """The weighted mean of ∇f_i(params)."""
        return add(
            *(scaled(w, self._client(m, params)) for w, m in zip(self.weights, self.cohort.members, strict=True))
        )

    def _client(self, member: Member, params: Any) -> Any:
        if self.once:
            assert member.counts is not None
            return add(*(scaled(n / member.size, self.step(member, k, params)) for k, n in enumerate(member.counts)))
        parts = []
        for number, start in enumerate(range(0, member.size, self.problem.chunk)):
            rows = np.arange(start, min(start + self.problem.chunk, member.size))
            key = jax.random.fold_in(jax.random.fold_in(self.key, member.index), PROBE_STREAM + number)
            batch = {name: a[rows] for name, a in member.data.items()}
            parts.append(scaled(len(rows) / member.size, self._grad(params, batch, key)))
        return add(*parts)


def add(*trees: Any) -> Any:
    return jax.tree.map(lambda *leaves: sum(leaves[1:], start=leaves[0]), *trees)


def scaled(w: float, tree: Any) -> Any:
    return jax.tree.map(lambda leaf: w * leaf, tree)


def descend(plain: Plain, x: Any, direction: Any, eta: float) -> tuple[Any, list[Any]]:
    """The weighted mean of y_i - x, and every y_i."""
    ends = []
    for member in plain.cohort.members:
        y = x
        for k in range(member.steps):
            y = add(y, scaled(-eta, direction(member, k, y)))
        ends.append(y)
    moves = (scaled(w, add(y, scaled(-1, x))) for w, y in zip(plain.weights, ends, strict=True))
    return add(*moves), ends


def fedavg(plain: Plain, state: dict[str, Any], eta: float) -> dict[str, Any]:
    move, _ = descend(plain, state["x"], plain.step, eta)
    return {"x": add(state["x"], move)}


def mime(plain: Plain, state: dict[str, Any], eta: float, beta: float, corrected: bool) -> dict[str, Any]:
    x, m = state["x"], state["m"]
    c = plain.full(x)

    def direction(member: Member, k: int, y: Any) -> Any:
        g = plain.step(member, k, y)
        if corrected:
            g = add(g, scaled(-1, plain.step(member, k, x)), c)
        return add(scaled(1 - beta, g), scaled(beta, m))

    move, _ = descend(plain, x, direction, eta)
    return {"x": add(x, move), "m": add(scaled(1 - beta, c), scaled(beta, m))}


def mime_mvr(plain: Plain, state: dict[str, Any], eta: float, beta: float) -> dict[str, Any]:
    x, old, m = state["x"], state["old"], state["m"]
    h, c, a = plain.full(x), plain.full(old), 1 - beta

    def direction(member: Member, k: int, y: Any) -> Any:
        change = add(plain.step(member, k, y), scaled(-1, plain.step(member, k, old)))
        return add(scaled(a, add(change, c)), scaled(1 - a, m), scaled(1 - a, change))

    move, _ = descend(plain, x, direction, eta)
    m = add(scaled(a, h), scaled(1 - a, m), scaled(1 - a, add(h, scaled(-1, c))))
    return {"x": add(x, move), "old": x, "m": m}


def scaffold(plain: Plain, state: dict[str, Any], eta: float) -> dict[str, Any]:
    x, c, kept = state["x"], state["c"], dict(state["kept"])
    zero = jax.tree.map(jnp.zeros_like, x)

    def direction(member: Member, k: int, y: Any) -> Any:
        return add(plain.step(member, k, y), scaled(-1, kept.get(member.index, zero)), c)

    move, ends = descend(plain, x, direction, eta)
    total, after = zero, dict(kept)
    for member, y in zip(plain.cohort.members, ends, strict=True):
        own = kept.get(member.index, zero)
        new = add(own, scaled(-1, c), scaled(1 / (member.steps * eta), add(x, scaled(-1, y))))
        total, after[member.index] = add(total, new, scaled(-1, own)), new
    return {"x": add(x, move), "c": add(c, scaled(1 / plain.cohort.population, total)), "kept": after}
