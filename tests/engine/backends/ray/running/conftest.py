"""One Ray with two workers serves all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("ray", reason="the extra fedmime[ray] is not installed")

from engine.backends.ray.running.setting import SPECIFICATION
from fedmime.engine.backends.ray import cluster, crew
from fedmime.engine.backends.ray.seat import Seat
from fedmime.engine.backends.specification import Ray


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "running" in item.path.parts:
            item.add_marker(pytest.mark.timeout(600))
            item.add_marker(pytest.mark.xdist_group("ray"))


@pytest.fixture(autouse=True)
def even(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are taken for equally fast, however busy the machine is, so that each gets a part in every round."""
    monkeypatch.setattr(Seat, "pace", 1.0)


@pytest.fixture(scope="session")
def ray() -> Iterator[Ray]:
    with SPECIFICATION as held:
        crew.started(held.options)
        yield held
    assert not cluster.CLUSTER._users
