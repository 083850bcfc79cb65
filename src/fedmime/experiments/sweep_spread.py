"""Points of a sweep spread over workers: every point is on one worker, with the others of its share in lockstep.

Only names and numbers travel. What a point has reached is on the shelf: whoever trains a point loads it from there, and
saves it before it answers. So a worker that dies loses the rounds since its last save, and the numbers do not depend on
who trained which rounds of which point.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from fedmime.experiments.sweep_rounds import Stop
from fedmime.experiments.sweep_trial import Trial

Share = Mapping[int, str]
"""Points that a worker is given: their places in the grid, and their names, by which it knows that it has the same."""


class Answer(NamedTuple):
    """What has become of a share."""

    facts: Mapping[int, Mapping[str, Any]]
    """Of every point, by its place in the grid."""
    said: Sequence[tuple[str, str]]
    """Warnings, each with the name of its logger."""


class Workers(Protocol):
    """Processes that train shares."""

    @property
    def count(self) -> int:
        """How many there are."""
        ...

    def run(
        self, shares: Sequence[Share], until: int, on_round: Callable[[], None], stop: Stop
    ) -> tuple[list[Answer], Any]:
        """Train shares, each on a worker of its own, until so many rounds are done or there is reason to deal again.

        Returns:
            The answers of those that did not die, and what `stop` has said.
        """
        ...

    def close(self) -> None:
        """Let workers go; those that are at work save it first, where they can."""
        ...


class Spread:
    """The trials of a grid on workers, which are started when there is something to train."""

    def __init__(self, trials: Sequence[Trial], start: Callable[[], Workers]) -> None:
        self._trials, self._start = trials, start
        self._workers: Workers | None = None
        self._said: set[tuple[str, str]] = set()

    def advance(self, chosen: Sequence[Trial], until: int, on_round: Callable[[], None], stop: Stop = None) -> Any:
        """See `Lockstep.advance`. When a worker has finished its share, what is left of all shares is dealt again."""
        places = {id(trial): place for place, trial in enumerate(self._trials)}
        while going := [trial for trial in chosen if trial.unfinished(until)]:
            self._workers = workers = self._workers or self._start()
            shares = [{places[id(t)]: t.name for t in share} for share in deal(going, until, workers.count)]
            answers, ended = workers.run(shares, until, on_round, stop)
            for answer in answers:
                for place, facts in answer.facts.items():
                    self._trials[place].take(facts)
                self._repeat(answer.said)
            if ended:
                return ended
        return None

    def close(self) -> None:
        """Let workers go."""
        workers, self._workers = self._workers, None
        if workers is not None:
            workers.close()

    def _repeat(self, said: Sequence[tuple[str, str]]) -> None:
        """Warn of what workers have warned of, once where several have."""
        for name, words in said:
            if (name, words) not in self._said:
                self._said.add((name, words))
                logging.getLogger(name).warning("%s", words)


def deal(trials: Sequence[Trial], until: int, most: int) -> list[list[Trial]]:
    """At most so many shares with about as many rounds left: those with the most rounds left are dealt first."""
    shares: list[list[Trial]] = [[] for _ in range(min(most, len(trials)))]
    for trial in sorted(trials, key=lambda trial: trial.done):
        min(shares, key=lambda share: sum(until - each.done for each in share)).append(trial)
    return shares
