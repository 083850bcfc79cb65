"""Which parameters of a test `make test` runs, and which are left to `make test-slow`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def fast(names: Iterable[str], alike: Collection[str]) -> list[Any]:
    """Parameters of which some are slow tests, because the others together show by default what they show."""
    listed = list(names)
    unknown = set(alike) - set(listed)
    assert not unknown, f"there are no such parameters: {sorted(unknown)}"
    return [pytest.param(name, marks=[pytest.mark.slow] if name in alike else []) for name in listed]
