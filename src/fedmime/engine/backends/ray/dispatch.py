"""Who computes which part of a round, and how their answers are collected, whoever dies meanwhile.

What a part is does not depend on workers, so this is free to follow how fast they are: results are the same bits.
"""

from __future__ import annotations

import collections
import statistics
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from fedmime.engine.backends.ray.crew import LOOK, MOST_LOSSES, RESUME, Crew, cause_of, first_line
from fedmime.engine.backends.ray.parts import PartAnswer
from fedmime.engine.backends.ray.seat import Seat
from fedmime.errors import ClusterError

_SHORT = 0.05  # seconds; phases that no worker needs longer for do not tell how fast workers are
_GAIN = 1.1  # how much sooner another worker must finish a part to get it in place of the usual one

W = TypeVar("W", bound=Hashable)


class Order(NamedTuple):
    """A part that somebody has to compute."""

    cost: float
    """How much work it is."""
    send: Callable[[Seat], Any]
    """Sends it to a worker; returns Ray's reference to the answer."""


def assigned(
    costs: Mapping[int, float], paces: Mapping[W, float], usual: Mapping[int, W], loads: Mapping[W, float]
) -> dict[int, W]:
    """A worker for every part: the longest part first, each to the worker that is expected to finish it first.

    Args:
        costs: how much work each part is, by number.
        paces: how long each worker takes for a unit of work.
        usual: the worker that gets a part unless another one would finish it clearly sooner, so that parts do not
            change hands for nothing.
        loads: how long each worker is busy with what it has already.
    """
    found, busy = {}, dict(loads)
    for number in sorted(costs, key=lambda number: (-costs[number], number)):
        ends = {worker: busy[worker] + costs[number] * pace for worker, pace in paces.items()}
        chosen = min(ends, key=lambda worker: ends[worker] * (1 if worker == usual.get(number) else _GAIN))
        found[number], busy[chosen] = chosen, ends[chosen]
    return found


def place(
    crew: Crew, orders: Mapping[int, Order], placed: dict[int, Seat], numbers: Collection[int], busy: Iterable[int] = ()
) -> None:
    """Choose who computes parts. A part whose worker is ready stays there, since it may have done the last phase.

    Args:
        crew: the workers, of whom one is ready.
        orders: all parts.
        placed: who computes each part, which is updated.
        numbers: the parts to place.
        busy: parts that are being computed.
    """
    paces = {seat: seat.pace for seat in crew.ready}
    stay = {number for number in numbers if placed.get(number) in paces}
    loads = dict.fromkeys(paces, 0.0)
    for number in stay.union(number for number in busy if placed[number] in paces):
        loads[placed[number]] += orders[number].cost * paces[placed[number]]
    missing = {number: orders[number].cost for number in numbers if number not in stay}
    usual = {number: crew.seats[number % len(crew.seats)] for number in missing}
    placed |= assigned(missing, paces, usual, loads)


class Received(NamedTuple):
    """An answer, and how it came."""

    answer: PartAnswer
    seat: Seat
    seconds: float
    """How long it took to copy it here."""


def collect(crew: Crew, orders: Mapping[int, Order], placed: dict[int, Seat]) -> dict[int, Received]:
    """The answers of all parts, by number.

    Args:
        crew: the workers.
        orders: the parts.
        placed: who has computed the last phase of each part, which is updated; the same worker computes the next.
    """
    import ray
    from ray.exceptions import RayError, RayTaskError

    crew.check_head()
    crew.admit(0)
    waiting: dict[Any, int] = {}
    losses: collections.Counter[int] = collections.Counter()
    received: dict[int, Received] = {}
    for seat in crew.seats:
        seat.waiting = 0

    def send(numbers: Collection[int]) -> None:
        crew.await_one()
        place(crew, orders, placed, numbers, waiting.values())
        for number in numbers:
            placed[number].given()
            waiting[orders[number].send(placed[number])] = number

    send(list(orders))
    while waiting:
        ready, _ = ray.wait(list(waiting), num_returns=1, timeout=LOOK)
        for ref in ready:
            number = waiting.pop(ref)
            seat, start = placed[number], time.perf_counter()
            try:
                answer = ray.get(ref)
            except RayTaskError as error:
                raise cause_of(error) from None
            except RayError as error:
                losses[number] += seat.alive
                crew.lose(seat, first_line(error))
                if losses[number] >= MOST_LOSSES:
                    words = f"ray: {losses[number]} workers have died over the same part of a cohort"
                    raise ClusterError(f"{words}, the last of them: {first_line(error)}; {RESUME}") from None
                send([number])
            else:
                received[number] = Received(answer, seat, time.perf_counter() - start)
                seat.answered()
        if not ready:
            crew.look_after({placed[number] for number in waiting.values()})
    _measure(crew, orders, received)
    return received


def _measure(crew: Crew, orders: Mapping[int, Order], received: Mapping[int, Received]) -> None:
    """Note how fast workers were in a phase, each compared with the others of the same phase.

    What a unit of work takes is another question in every phase and for every problem. Short phases are left out: what
    they take says little about workers, and nothing is won by moving their parts.
    """
    seconds: dict[Seat, float] = collections.defaultdict(float)
    costs: dict[Seat, float] = collections.defaultdict(float)
    for number, (answer, seat, _) in received.items():
        seconds[seat] += answer.seconds
        costs[seat] += orders[number].cost
    for seat in crew.ready:
        if seat not in seconds:
            seat.rested()
    if len(seconds) > 1 and max(seconds.values()) > _SHORT and min(costs.values()) > 0:
        paces = {seat: seconds[seat] / costs[seat] for seat in seconds}
        usual = statistics.median(paces.values())
        for seat, pace in paces.items():
            seat.measured(pace / usual)
