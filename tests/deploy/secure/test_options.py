"""The numbers of a secure run, and the groups that they accept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmime.deploy.messages import MOST_CLIENTS
from fedmime.deploy.secure.options import SecureSum
from fedmime.errors import ConfigError


@given(st.floats(0.5, 1, exclude_min=True), st.integers(3, MOST_CLIENTS), st.integers(1, MOST_CLIENTS))
def test_of_two_disjoint_parts_of_a_group_only_one_is_enough(threshold: float, minimum: int, clients: int) -> None:
    needed = SecureSum(minimum=minimum, threshold=threshold).needed(clients)
    assert 2 * needed > clients
    assert needed >= minimum


@given(st.integers(8, 30), st.integers(3, MOST_CLIENTS))
def test_the_sum_of_a_group_fits_its_width(bits: int, clients: int) -> None:
    largest = (1 << (bits - 1)) - 1
    assert clients * largest < 1 << (SecureSum(bits).width(clients) - 1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bits": 7}, "bits must be a whole number of at least 8, got 7"),
        ({"bits": 31}, "bits must be a whole number of at least 8 and at most 30, got 31"),
        ({"minimum": 2}, "minimum must be a whole number of at least 3, got 2"),
        ({"threshold": 0.5}, r"threshold must lie in \(0.5, 1\], got 0.5"),
        ({"threshold": float("nan")}, "threshold must lie in .* got nan"),
    ],
)
def test_numbers_that_protect_nobody_are_refused(options: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        SecureSum(**options)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(("clients", "bits"), [(2, 20), (129, 20), (5, 30)])
def test_groups_that_hide_nobody_or_do_not_fit_are_refused(clients: int, bits: int) -> None:
    with pytest.raises(ConfigError, match=f"a group must have 3 to .* got {clients}"):
        SecureSum(bits).check_group(clients)
