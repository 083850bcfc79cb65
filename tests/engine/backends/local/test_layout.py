"""Members of a cohort are dealt evenly, by one rule for all back ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmime.engine.backends.local.layout import deal, in_words


@given(st.lists(st.floats(0, 100), max_size=30), st.integers(1, 9))
def test_members_are_dealt_evenly(costs: list[float], parts: int) -> None:
    """Everybody is in one part, and no part has more than an average one and the longest member."""
    dealt = deal(costs, parts)
    assert sorted(place for part in dealt for place in part) == list(range(len(costs)))
    for part in dealt:
        assert part == sorted(part, key=lambda place: (-costs[place], place))
    loads = [sum(costs[place] for place in part) for part in dealt]
    assert max(loads) <= sum(costs) / parts + max(costs, default=0) + 1e-9


@pytest.mark.parametrize(
    ("devices", "parts", "words"),
    [(1, 1, "1 device"), (3, 1, "3 devices"), (1, 3, "3 devices"), (2, 3, "3 parts on 2 devices each")],
)
def test_parts_on_one_device_are_like_devices(devices: int, parts: int, words: str) -> None:
    assert in_words(devices, parts) == words
