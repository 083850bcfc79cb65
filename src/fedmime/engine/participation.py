"""Who of a cohort takes part: how it is drawn, who is reachable, who drops out, how many more are asked for that."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np

from fedmime.engine import samplers
from fedmime.errors import ConfigError
from fedmime.numbers import choice


class Drawn(NamedTuple):
    """Positions in the population: those that report, and those that were asked in vain."""

    clients: np.ndarray
    late: np.ndarray
    dropped: np.ndarray


@dataclasses.dataclass(frozen=True)
class Participation:
    """How a cohort comes about; every draw is a function of seed and round alone.

    Args:
        sampler: `"uniform"`, `"by_size"` (chances proportional to examples), `"with_replacement"` or `"diurnal"`
            (clients are reachable at night in their own time zone).
        drop_out: the chance that a client asked never reports.
        over_selection: how many times the cohort are asked, so that enough report; the first to arrive are kept.
        minimum: the share of the cohort below which a round is abandoned.
        rounds_per_day: the clock of `"diurnal"`.
    """

    sampler: str = "uniform"
    drop_out: float = 0.0
    over_selection: float = 1.0
    minimum: float = 0.5
    rounds_per_day: float = 24.0

    def __post_init__(self) -> None:
        choice("participation", "sampler", self.sampler, ("uniform", "by_size", "with_replacement", "diurnal"))
        for name, low, high in (("drop_out", 0, 1), ("minimum", 0, 1), ("over_selection", 1, 100)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                raise ConfigError(f"participation: {name} must lie in [{low}, {high}], got {value!r}")

    def draw(self, sizes: np.ndarray, cohort_size: int, seed: int, round_number: int) -> Drawn:
        """The clients of a round. Clients without examples are never asked."""
        available = np.flatnonzero(sizes)
        wanted = min(samplers.over_selected(cohort_size, self.over_selection), len(available))
        if self.sampler == "by_size":
            asked = samplers.by_size(sizes, wanted, seed, round_number)
        elif self.sampler == "with_replacement":
            asked = available[samplers.with_replacement(len(available), wanted, seed, round_number)]
        elif self.sampler == "diurnal":
            asked = available[samplers.diurnal(len(available), wanted, seed, round_number, self.rounds_per_day)]
        else:
            asked = available[samplers.uniform(len(available), wanted, seed, round_number)]
        if not self.drop_out and self.over_selection == 1.0:
            return Drawn(asked, asked[:0], asked[:0])
        reports = samplers.reports(asked, cohort_size, self.drop_out, seed, round_number)
        return Drawn(reports.kept, reports.late, reports.dropped)

    def enough(self, reported: int, cohort_size: int) -> bool:
        """Whether a round with so many reports goes on."""
        return reported >= max(1, self.minimum * cohort_size)


RELIABLE = Participation()
