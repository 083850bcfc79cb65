"""What a run on Ray says about its rounds and its workers."""

from __future__ import annotations

import numpy as np

from fedmime.engine.backends.ray.dispatch import Received
from fedmime.engine.backends.ray.parts import PartAnswer
from fedmime.engine.backends.ray.seat import Seat
from fedmime.engine.backends.ray.tally import Tally


def _received(seat: Seat, numbers: int, seconds: float) -> Received:
    answer = PartAnswer((np.zeros(numbers),), 0.5, None, 1, {}, 0, {}, [], seconds)
    return Received(answer, seat, 0.25)


def test_rounds_and_workers_are_counted() -> None:
    tally, one, other = Tally(), Seat(0, None), Seat(1, None)
    lost = [(Seat(0, None), "before the run")]
    tally.begin(7, lost)
    tally.sent({"x": np.zeros(4), "n": 3}, 0.5)
    tally.received([_received(one, 10, 1.0), _received(other, 20, 2.0)])
    lost.append((other, "it died"))
    tally.begin(7, lost)
    tally.received([_received(one, 1, 1.0)])  # phase 2 of the same round
    assert tally.telemetry() == {
        "workers": 2,
        "workers_lost": 1,
        "bytes_broadcast": 32,
        "bytes_gathered": 248,
        "seconds_broadcast": 0.5,
        "seconds_gather": 0.75,
    }
    tally.begin(8, lost)
    tally.received([_received(one, 10, 1.0)])
    assert (tally.telemetry()["bytes_gathered"], tally.telemetry()["workers_lost"]) == (80, 0)
    assert list(tally.lines()) == [
        "worker 0: 2 rounds, 3 parts, 3.0 s of computing, 0.0 MB of answers",
        "worker 1: 1 rounds, 1 parts, 2.0 s of computing, 0.0 MB of answers; lost: it died",
    ]
