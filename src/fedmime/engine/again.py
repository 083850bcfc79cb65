"""A round like the one before it on the same cohort: what was looked at and laid out then need not be again.

A small model's round is over in some milliseconds, and Python is slow on a core that has just computed: what takes a
tenth of a millisecond in a loop of its own takes four times as long there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax

from fedmime.algorithms.algorithm import State
from fedmime.engine.backends import local
from fedmime.engine.cohort import Cohort
from fedmime.engine.round import Ready, drawn


class Asked(NamedTuple):
    """What a round was asked for beside its state and cohort; the next one must be asked for the very same."""

    algorithm: Any
    problem: Any
    key: Any
    devices: Any
    drift: Any
    wide: bool  # whether JAX has 64 bits
    lends: bool  # whether rounds hand memory on


class Last(NamedTuple):
    """The last round on a cohort."""

    asked: Asked
    kinds: Any  # of the state it began with
    ready: Ready  # without the cohort, which keeps this


def keep(asked: Asked, state: State, cohort: Cohort, ready: Ready) -> None:
    """Keep a round with its cohort, unless the next one will differ: in its numbers, or because this one primed."""
    same = not ready.options.prime and not any(callable(leaf) for leaf in jax.tree.leaves(asked.algorithm))
    if same and cohort.laid_out and isinstance(asked.key, jax.Array | None):  # other keys could be written over
        kept = ready._replace(laid=ready.laid.kept_by(cohort))
        cohort.last_round[:] = [Last(asked, _kinds(state), kept)]


def again(asked: Asked, state: State, cohort: Cohort) -> Ready | None:
    """The round that was kept, for a state of the same kind; None where there is none, or not this one."""
    last: Last | None = next(iter(cohort.last_round), None)
    if last is None:
        return None
    same = all(a is b for a, b in zip(asked, last.asked, strict=True)) and _kinds(state) == last.kinds
    if not same or state.round < asked.algorithm.gradient_rounds:  # a run that begins anew has to prime
        cohort.last_round.clear()
        return None
    ready, common = last.ready, last.ready.common
    if local.counts_rounds(ready.algorithm, ready.options):
        draws = drawn(ready.algorithm, state.round, ready.laid.of(cohort).cohort, asked.key, ready.options)
        common = common._replace(draws=draws)
    return ready._replace(round=state.round, laid=ready.laid.of(cohort), common=common)


def _kinds(state: State) -> Any:
    """The structure of a server's state, and the shapes, numbers and places of its arrays."""
    leaves, structure = jax.tree.flatten(state.server)
    return structure, [(getattr(leaf, "aval", None), getattr(leaf, "sharding", None)) for leaf in leaves]
