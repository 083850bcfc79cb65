"""What a run on Ray says about itself: how much travelled in every round, and who computed what."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax

from fedmime.engine.backends.ray.dispatch import Received
from fedmime.engine.backends.ray.seat import Seat


@dataclasses.dataclass
class Share:
    """What one worker has done for a run."""

    rounds: int = 0
    parts: int = 0
    seconds: float = 0.0
    bytes: int = 0

    def __str__(self) -> str:
        did = f"{self.rounds} rounds, {self.parts} parts, {self.seconds:.1f} s of computing"
        return f"{did}, {self.bytes / 1e6:.1f} MB of answers"


class Tally:
    """Counts of a run and of its current round.

    Attributes:
        shares: what every worker has done, by its seat.
    """

    def __init__(self) -> None:
        self.shares: dict[Seat, Share] = {}
        self._round, self._lost, self._before = -1, [], 0
        self._count_anew()

    def begin(self, round_id: int, lost: Sequence[tuple[Seat, str]]) -> None:
        """Count for this round.

        Args:
            round_id: the round; a second call for the same round changes nothing.
            lost: the live list of lost workers, each with the reason, to which the crew appends later losses.
        """
        if round_id != self._round:
            self._round, self._lost, self._before = round_id, lost, len(lost)
            self._count_anew()

    def _count_anew(self) -> None:
        self._seats: set[Seat] = set()
        self._sent = self._received = 0
        self._sending = self._receiving = 0.0

    def sent(self, value: Any, seconds: float) -> None:
        """A value left the driver, which took so long."""
        self._sent += nbytes(value)
        self._sending += seconds

    def received(self, answers: Iterable[Received]) -> None:
        """Answers have come."""
        for answer, seat, seconds in answers:
            share, size = self.shares.setdefault(seat, Share()), nbytes(answer)
            share.rounds += seat not in self._seats
            share.parts += 1
            share.seconds += answer.seconds
            share.bytes += size
            self._seats.add(seat)
            self._received += size
            self._receiving += seconds

    def telemetry(self) -> dict[str, float]:
        """The telemetry of the current round."""
        return {
            "workers": len(self._seats),
            "workers_lost": len(self._lost) - self._before,
            "bytes_broadcast": self._sent,
            "bytes_gathered": self._received,
            "seconds_broadcast": round(self._sending, 6),
            "seconds_gather": round(self._receiving, 6),
        }

    def lines(self) -> Iterator[str]:
        """A line for every worker of the run, and why those were lost that were."""
        lost = dict(self._lost)
        for seat, share in sorted(self.shares.items(), key=lambda pair: pair[0].number):
            yield f"{seat}: {share}" + (f"; lost: {lost[seat]}" if seat in lost else "")


def nbytes(value: Any) -> int:
    """The size of the arrays in a value."""
    return sum(getattr(leaf, "nbytes", 0) for leaf in jax.tree.leaves(value))
