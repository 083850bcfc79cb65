"""Numbers of bytes as people write them."""

import pytest

from fedmime.runs.sizes import size


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (4.2e6, "4.2 MB"), (1e9, "1.0 GB"), (12.34e15, "12340.0 TB")],
)
def test_sizes_take_the_largest_unit_that_they_fill(count: float, words: str) -> None:
    assert size(count) == words
