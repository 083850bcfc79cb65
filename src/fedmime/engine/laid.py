"""A cohort on the devices: looked at, dealt out, its tables sent. One that is run again keeps what was made of it."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from fedmime import native
from fedmime.algorithms.algorithm import Algorithm
from fedmime.engine import traced
from fedmime.engine.cohort import Cohort
from fedmime.engine.devices import mesh, spread
from fedmime.engine.gradients import LossProblem
from fedmime.engine.intake import Check, Intake
from fedmime.engine.plan import COMMON_BYTES, MOST_COMMON, Layout, Packed, Plan, make_plan, waves_of
from fedmime.errors import DataError
from fedmime.vector import nbytes

LARGEST = 128 << 20  # bytes of tables that a cohort keeps


class Data(LossProblem, Protocol):
    """What laying out needs of a problem."""

    @property
    def check(self) -> Check: ...


class Laid(NamedTuple):
    """What does not depend on the round."""

    cohort: Any  # without clients whose data is not finite; None where the cohort itself keeps this
    refused: tuple[int, ...]  # those clients
    random: bool  # whether the loss draws random numbers: no chunk of a full gradient then spans two clients
    plans: list[Plan]
    tables: list[Packed]  # on the devices

    def kept_by(self, cohort: Cohort) -> Laid:
        """The same without the cohort itself: nothing would free one that refers to itself."""
        return self._replace(cohort=None) if self.cohort is cohort else self

    def of(self, cohort: Cohort) -> Laid:
        """What the cohort kept."""
        return self._replace(cohort=cohort) if self.cohort is None else self


def lay_out(algorithm: Algorithm, problem: Data, model: Any, cohort: Cohort, layout: Layout, intake: Intake) -> Laid:
    """Look at a cohort's data and send it to the devices."""
    cohort, refused = intake.admit(cohort)
    if algorithm.pooled and cohort.explicit and cohort.training:
        cohort = cohort.pooled()
    elif algorithm.pooled and refused:
        raise DataError("the pooled examples hold NaN or infinite numbers; `fedmime data verify` names their client")
    random = bool(cohort.members) and _random(problem, model, cohort, layout)
    waves = waves_of(cohort)
    common = _common(algorithm, model, layout) if len(waves) == 1 else 0
    kind = {"split": algorithm.split, "by_client": random, "gradients": _asks(algorithm), "common": common}
    plans = [make_plan(cohort, members, layout, **kind) for members in waves]
    place = spread(mesh(layout.devices))
    native.give_way()
    return Laid(cohort, refused, random, plans, [plan.tables.sent(place) for plan in plans])


def _random(problem: Data, model: Any, cohort: Cohort, layout: Layout) -> bool:
    """Whether the loss draws random numbers; a run, which knows its model by its shapes, asks once."""
    known = layout.random
    if known is not None and known[0] is problem and known[1] is model:
        return known[2]
    answer = traced.uses_key(problem, model, cohort.members[0].data)
    if all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(model)):
        layout.random = (problem, model, answer)
    return answer


def laid_before(algorithm: Algorithm, problem: Data, model: Any, cohort: Cohort, layout: Layout) -> Laid:
    """The same for a cohort with a layout of its own; the last one made is kept as long as the cohort is."""
    kind = (layout.devices, layout.lanes, layout.chunk, algorithm.split, algorithm.pooled)
    kind = (*kind, _common(algorithm, model, layout), problem.loss, problem.check, jnp.result_type(float))
    laid = cohort.laid_out.get(kind)
    if laid is None:
        with jax.ensure_compile_time_eval():  # also if somebody traces a round: the arrays stay
            laid = lay_out(algorithm, problem, model, cohort, layout, Intake(problem.check))
        cohort.laid_out.clear()
        cohort.last_round.clear()
        if nbytes(laid.tables) <= LARGEST:
            cohort.laid_out[kind] = laid.kept_by(cohort)
    return laid.of(cohort)


def leaves_some(algorithm: Algorithm, layout: Layout) -> bool:
    """Whether clients may be left to whichever device is done first: none may be tied to what a device has of it."""
    plain = type(algorithm).remember is Algorithm.remember and not _asks(algorithm)
    several = layout.devices > 1 and layout.lanes == 1 and not layout.masked
    return plain and several and native.totals()


def _asks(algorithm: Algorithm) -> bool:
    """Whether clients may be asked for full gradients."""
    return type(algorithm).points is not Algorithm.points or algorithm.gradient_rounds > 0


def _common(algorithm: Algorithm, model: Any, layout: Layout) -> int:
    """How many such clients there may be. What each of them replies is kept by itself."""
    leaves = jax.tree.leaves(model)
    if not leaves_some(algorithm, layout) or not native.totals(*leaves):
        return 0
    return min(MOST_COMMON, COMMON_BYTES // max(nbytes(leaves), 1))
