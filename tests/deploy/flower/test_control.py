"""The operator's half of a SuperLink, as far as it needs none: whose keys are registered."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedmime.deploy.flower import keys
from fedmime.deploy.flower.control import Control, owners_in
from fedmime.errors import ConfigError

pytest.importorskip("flwr")


class Registering(Control):
    """A SuperLink that takes every key."""

    count = 0

    @contextlib.contextmanager
    def _client(self) -> Iterator[Any]:
        def register(request: Any) -> Any:
            assert request.public_key
            self.count += 1
            return SimpleNamespace(node_id=2**60 + self.count)

        yield SimpleNamespace(RegisterNode=register, UnregisterNode=lambda request: None)


def test_who_owns_which_key_is_written_down(tmp_path: Path) -> None:
    control, told = Registering("localhost:1", tmp_path), tmp_path / "owners.json"
    first, second, third = (keys.make_node(tmp_path / "keys", name) for name in ("a", "b.c", "d"))
    one = control.register(first.with_name("a.pub"))
    control.tell_owners(told)
    assert owners_in(told) == {one: "a"}
    assert told.stat().st_mode & 0o777 == 0o600
    two = control.register(second.with_name("b.c.pub"))
    assert owners_in(told) == {one: "a", two: "b.c"}
    control.unregister(one)
    assert owners_in(told) == {two: "b.c"}
    with pytest.raises(ConfigError, match="holds no public key"):
        control.register(third)
    assert owners_in(told) == {two: "b.c"}
