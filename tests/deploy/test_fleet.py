"""Fleets: an order that names decide, a registry that comes back, and no data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedmime as fm
from engine.setting import a
from fedmime.deploy.fleet import Registered, Registry, in_order
from fedmime.deploy.secret import Secret
from fedmime.deploy.secure.options import SecureSum
from fedmime.engine.sampling import Schedule

CLIENTS = tuple(Registered(name, n, "a" * 64) for name, n in (("c0", 4), ("c1", 2)))


def test_names_are_in_their_natural_order() -> None:
    names = ["c10", "c2", "b", "c02", "c", "10", "9", ""]
    found = [client.name for client in in_order(Registered(name, 1, "") for name in names)]
    assert found == ["", "9", "10", "b", "c", "c02", "c2", "c10"]


@given(st.lists(st.text(max_size=6), unique=True), st.randoms())
def test_the_order_does_not_depend_on_who_came_first(names: list[str], rng) -> None:
    clients = [Registered(name, 1, "") for name in names]
    shuffled = rng.sample(clients, len(clients))
    assert in_order(shuffled) == in_order(clients)


def test_a_registry_comes_back(tmp_path: Path) -> None:
    for secure in (None, SecureSum(bits=16, minimum=4, threshold=0.9)):
        registry = Registry("0" * 32, CLIENTS, secure)
        registry.write(tmp_path / "fleet.json")
        assert Registry.read(tmp_path / "fleet.json") == registry
    assert (tmp_path / "fleet.json").stat().st_mode & 0o777 == 0o600
    masks = '{"run": "x", "clients": [], "secure": {"minimum": 1}}'
    for damaged in (
        masks,
        "",
        "[]",
        "{}",
        '{"run": "x", "clients": [1]}',
        '{"run": "x", "clients": [["a", "b", "c"]]}',
    ):
        (tmp_path / "fleet.json").write_text(damaged)
        with pytest.raises(fm.CheckpointError, match="damaged"):
            Registry.read(tmp_path / "fleet.json")


def test_a_fleet_is_a_population_without_data() -> None:
    secret = Secret(bytes(32))
    fleet = Registry("0" * 32, CLIENTS).fleet(secret, 7, None)
    assert fleet.sizes.tolist() == [4, 2]
    assert fleet.ids == (secret.pseudonym("c0"), secret.pseudonym("c1"))
    with pytest.raises(fm.DataError, match=f"{fleet.ids[1]}: the examples of a deployed client cannot be read"):
        fleet.client_at(1)
    changed = Registry("0" * 32, (CLIENTS[0], CLIENTS[1]._replace(data="b" * 64))).fleet(secret, 7, None)
    assert changed.identity() != fleet.identity()


def test_cohorts_are_drawn_by_the_fleets_own_seed() -> None:
    many = Registry("0" * 32, tuple(Registered(f"c{i}", 1, "") for i in range(50)))
    schedule = Schedule(5, 1, 1, None, 0, "examples")
    drawn = [
        [m.client for m in schedule.cohort(a.fedavg(0.1), many.fleet(Secret(bytes(32)), seed, None), 3).members]
        for seed in (0, 1, 1)
    ]
    assert drawn[0] != drawn[1] == drawn[2]
    own = schedule.participation.draw(np.ones(50, int), 5, 0, 3).in_time
    assert drawn[0] == own.tolist()
