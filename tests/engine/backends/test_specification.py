"""The choice of a back end: what is refused before anything starts."""

from __future__ import annotations

from typing import Any

import pytest

import fedmime as fm
from engine.setting import KINDS, PROBLEM, population


@pytest.mark.parametrize(
    "options",
    [
        {"workers": 0},
        {"cores_per_worker": 0},
        {"deadline": 0.0},
        {"parts": 0},
        {"address": ""},
        {"address": "auto"},
        {"address": "ray://10.0.0.1:10001"},
        {"address": 6379},
    ],
)
def test_wrong_options_of_ray_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(fm.ConfigError, match=f"ray: {next(iter(options))} must"):
        fm.backends.ray(**options)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(fm.ConfigError, match=r"the Ray back end is an extra: pip install 'fedmime\[ray\]'"):
        fm.simulate(KINDS["fedavg"], PROBLEM, population([3, 4]), 1, 2, backend="ray")
