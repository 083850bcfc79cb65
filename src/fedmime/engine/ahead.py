"""Work before its turn: the next round is laid out while the devices compute one, and begins before that ends."""

from __future__ import annotations

import atexit
import collections
import contextlib
import time
from collections.abc import Callable, Iterator

from fedmime.algorithms.algorithm import State
from fedmime.engine.round import Info, Ready, Underway, begin, beside, end, ends_alone, info, wait_for_devices

BRISK = 0.1  # seconds: nothing is gained by beginning early after rounds that take longer, and stopping takes longer


_going_on: collections.deque[Info] = collections.deque()  # what happens in rounds that nobody may have waited for


def go_on(underway: Underway) -> tuple[State, Info]:
    """The state after a round and what happens in it, before it ends; the one before it has ended.

    With more rounds on their way, XLA's threads would wait for each other for ever.
    """
    if not ends_alone(underway):
        return end(underway)
    told = info(underway)
    _going_on.append(told)
    wait_for_all_but(1)
    wait_for_devices(underway)
    return underway.state, told


def wait_for_all_but(rounds: int) -> None:
    """Raises what went wrong in a round if nobody has seen it yet."""
    with contextlib.suppress(IndexError):  # another thread may wait for them, too
        while len(_going_on) > rounds:
            _going_on.popleft()._wait()


@atexit.register
def _wait_for_all() -> None:
    """Before JAX ends; whatever went wrong, nobody will look any more."""
    while _going_on:
        with contextlib.suppress(Exception):
            wait_for_all_but(0)


class Layouts:
    """The layouts of rounds in turn, each made when there is time; what goes wrong with one belongs to its round."""

    def __init__(self, make: Callable[[int], Ready], start: int, rounds: int) -> None:
        self._make, self._next, self._rounds = make, start, rounds
        self._made: Ready | Exception | None = None

    def prepare(self) -> bool:
        """Make that of the next round, if there is one; whether it can be taken."""
        if self._made is None and self._next < self._rounds:
            try:
                self._made = self._make(self._next)
            except Exception as error:
                self._made = error
        return not isinstance(self._made, Exception | None)

    def take(self) -> Ready:
        """That of the next round."""
        self.prepare()
        made, self._made, self._next = self._made, None, self._next + 1
        if isinstance(made, Exception):
            raise made
        assert made is not None
        return made


def run_all(
    layouts: Layouts, state: State, rounds: int, needed: Callable[[int], bool], watched: bool = True
) -> Iterator[tuple[Ready, State, Info]]:
    """Run rounds one after another, with the host's work beside the devices'.

    `needed`: asked in a round, with how many will be done then, whether somebody wants the state after it. If not, the
    devices may go on to the next round at once, which uses that state up. `watched`: whether somebody is told of rounds
    who may have programs of his own; all devices have then begun the next one.
    """
    wait_for_all_but(0)
    underway: Underway | None = None
    brisk = False
    while state.round < rounds:
        start = time.monotonic()
        if underway is None:
            underway = begin(layouts.take(), state)
            wait_for_devices(underway)
        following, trouble = None, None
        with beside(underway.ready):
            early = layouts.prepare() and brisk and underway.state.memory is None
            try:
                if early and not needed(underway.state.round):
                    following = begin(layouts.take(), underway.state)
            except Exception as error:  # of the round to come
                trouble = error
        state, info = end(underway)
        if following is not None and watched:
            wait_for_devices(following)
        brisk = time.monotonic() - start < BRISK
        yield underway.ready, state, info
        if trouble is not None:
            raise trouble
        underway = following
