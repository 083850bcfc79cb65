"""The next cohort is drawn and laid out while the devices compute the current round."""

from __future__ import annotations

from collections.abc import Callable

from fedmime.engine.backends.backend import Backend, Work


class Prefetch:
    """The work of rounds in turn, each prepared before its turn comes.

    JAX dispatches programs asynchronously, so no thread is needed: `prepare` is called when the current round is on its
    way to the devices. An error belongs to its round: it is raised when that round's turn comes.

    Args:
        work: draws the work of a round.
        backend: lays it out.
        start: the first round.
        rounds: the number of rounds of the run.
        after_previous: whether a round can be drawn only after the previous one, whose losses its sampler uses.
    """

    def __init__(
        self, work: Callable[[int], Work], backend: Backend, start: int, rounds: int, after_previous: bool = False
    ) -> None:
        self._work, self._backend, self._next, self._rounds = work, backend, start, rounds
        self._after_previous = after_previous
        self._ready: Work | Exception | None = None
        self._priming = False  # whether the current round is a gradient-only one

    def prepare(self) -> None:
        """Draw and lay out the next round while the current one is computed, unless it needs the result of that one.

        What follows a gradient-only round depends on whether the server accepts it.
        """
        if not (self._after_previous or self._priming):
            self._draw()

    def _draw(self) -> None:
        if self._ready is None and self._next < self._rounds:
            try:
                self._ready = self._work(self._next)
                self._backend.prepare(self._ready)
            except Exception as error:
                self._ready = error

    def take(self) -> Work:
        """The work of the next round."""
        self._draw()
        ready, self._ready, self._next = self._ready, None, self._next + 1
        if isinstance(ready, Exception):
            raise ready
        assert ready is not None
        self._priming = ready.prime
        return ready
