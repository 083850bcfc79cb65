"""How a cohort comes about: the sampler, drop-out, over-selection and the least number of reports.

`samplers.py` has the random draws; `Participation` combines them into the policy of a run.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from fedmime.engine import samplers
from fedmime.errors import ConfigError
from fedmime.validation import choice

_SAMPLERS = ("uniform", "by_size", "with_replacement", "diurnal", "poisson")


@dataclasses.dataclass(frozen=True)
class Participation:
    """The policy by which cohorts are drawn: functions of seed and round alone, but for samplers of your own.

    Args:
        sampler: `"uniform"`, `"by_size"` (chances proportional to the number of examples), `"with_replacement"`,
            `"diurnal"` (clients can be reached at night in their own time zone) or `"poisson"` (each client
            independently, so that the cohort size is an expectation; nobody is late). Or a function
            `sampler(round, sizes, losses, rng)` that names clients in order of preference, given what is known of their
            losses (`fm.samplers.Sampler`), such as `fm.samplers.power_of_choice(20)`. Means are taken over whoever was
            drawn, weighted as `simulate(weights=…)` says, without a correction for the sampler's preferences.
        drop_out: probability that a client that was asked never reports.
        over_selection: clients that are asked, as a multiple of the cohort size, so that enough report; the first to
            arrive count.
        minimum: fraction of the cohort size that must report; a round with fewer reports is abandoned. A report that
            the gate refuses counts as one.
        rounds_per_day: rounds in 24 hours, for `"diurnal"`.
    """

    sampler: str | samplers.Sampler = "uniform"
    drop_out: float = 0.0
    over_selection: float = 1.0
    minimum: float = 0.5
    rounds_per_day: float = 24.0

    def __post_init__(self) -> None:
        if isinstance(self.sampler, str) or not callable(self.sampler):
            choice("participation", "sampler", self.sampler, _SAMPLERS)
        for name, low, high in (("drop_out", 0, 1), ("minimum", 0, 1), ("over_selection", 1, 100)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                raise ConfigError(f"participation: {name} must lie in [{low}, {high}], got {value!r}")
        if self.sampler == "poisson" and self.over_selection != 1:
            raise ConfigError(
                f"participation: over_selection must be 1 with sampler='poisson', got {self.over_selection!r}"
            )

    @property
    def uses_losses(self) -> bool:
        """Whether the sampler is told the clients' losses. A cohort can then be drawn only after the previous round."""
        return not isinstance(self.sampler, str)

    def unknown(self, sizes: np.ndarray) -> Any:
        """What is known of the clients' losses before the first round: NaN [clients], or `()` if nobody asks."""
        return np.full(len(sizes), np.nan, np.float32) if self.uses_losses else ()

    def draw(
        self, sizes: np.ndarray, cohort_size: int, seed: int, round_number: int, losses: Any = ()
    ) -> samplers.Reports:
        """Draw the clients of a round. Clients without examples are never asked.

        Args:
            sizes: n_i, the number of examples of each client [clients].
            cohort_size: how many reports are wanted, for `"poisson"` on average.
            losses: what a sampler of the user's is told of the clients' losses [clients], at first `unknown`.
        """
        available = np.flatnonzero(sizes)
        target = cohort_size
        wanted = min(samplers.over_selected(cohort_size, self.over_selection), len(available))
        if not isinstance(self.sampler, str):
            asked = samplers.drawn_by(self.sampler, sizes, losses, seed, round_number)[:wanted]
        elif self.sampler == "by_size":
            asked = samplers.by_size(sizes, wanted, seed, round_number)
        elif self.sampler == "with_replacement":
            asked = available[samplers.with_replacement(len(available), wanted, seed, round_number)]
        elif self.sampler == "diurnal":
            asked = available[samplers.diurnal(len(available), wanted, seed, round_number, self.rounds_per_day)]
        elif self.sampler == "poisson":
            asked = available[samplers.poisson(len(available), wanted, seed, round_number)]
            target = len(asked)  # to keep only the first would make the chances of clients depend on each other
        else:
            asked = available[samplers.uniform(len(available), wanted, seed, round_number)]
        if not self.drop_out and self.over_selection == 1.0:
            return samplers.Reports(asked, asked[:0], asked[:0])
        return samplers.reports(asked, target, self.drop_out, seed, round_number)

    def enough(self, reported: int, cohort_size: int) -> bool:
        """Whether a round with so many reports is carried out; otherwise it is abandoned."""
        return reported >= self.minimum * cohort_size


RELIABLE = Participation()  # the default: uniform sampling, and every client that is asked reports
