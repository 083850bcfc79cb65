"""What workers claim of a cluster, and how fast the driver takes them for."""

from __future__ import annotations

import pytest

from fedmime.engine.backends.ray.seat import Options, Seat

CLUSTER, OWN = Options(4, "10.0.0.1:6379", 2, 600.0), Options(4, None, 2, 600.0)


@pytest.mark.parametrize(
    ("options", "resources", "cores", "gpus", "room"),
    [
        (OWN, {"CPU": 0.0}, 0, 0, 4),  # any number fits into a Ray of our own
        (CLUSTER, {"CPU": 16.0}, 2, 0, 4),
        (CLUSTER, {"CPU": 7.0}, 2, 0, 3),
        (CLUSTER, {"CPU": 16.0, "GPU": 8.0}, 2, 1, 4),
        (CLUSTER, {"CPU": 16.0, "GPU": 2.0}, 2, 1, 2),  # others wait for a device
        (OWN, {"CPU": 0.0, "GPU": 1.0}, 0, 1, 1),
        (CLUSTER, {}, 2, 0, 0),
    ],
)
def test_a_worker_claims_its_cores_and_one_gpu_if_there_is_one(
    options: Options, resources: dict[str, float], cores: int, gpus: int, room: int
) -> None:
    assert options.claims(resources) == {"num_cpus": cores, "num_gpus": gpus}
    assert options.room(resources) == room


def test_a_compilation_does_not_make_a_worker_slow() -> None:
    seat = Seat(0, None)
    for pace, expected in ((30.0, 1.0), (0.9, 1.0), (1.1, 1.1), (1.0, 1.05)):
        seat.measured(pace)
        assert seat.pace == pytest.approx(expected)
    for _ in range(8):  # it has become slower
        seat.measured(4.0)
    assert seat.pace == pytest.approx(4.0)


def test_a_slow_worker_gets_another_chance() -> None:
    seat = Seat(0, None)
    for _ in range(3):
        seat.measured(9.0)
    for _ in range(59):
        seat.rested()
    assert seat.pace == pytest.approx(9.0)
    seat.rested()
    assert seat.pace == pytest.approx(1.0)


def test_a_worker_is_silent_while_it_has_something_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 10.0, 15.0, 20.0, 26.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    seat = Seat(0, None)  # at 0
    seat.given()  # at 10
    seat.given()
    assert seat.silent == 5.0  # at 15
    seat.answered()  # at 20
    assert (seat.waiting, seat.silent) == (1, 6.0)  # at 26
