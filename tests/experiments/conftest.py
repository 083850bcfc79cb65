"""What tests of experiments share."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest

from fedmime import data
from fedmime.experiments import train


@pytest.fixture
def few_writers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The embedded handwriting in the hands of 40 writers: to draw all 3,400 takes half a minute."""
    monkeypatch.setattr(data, "handwriting", functools.partial(data.handwriting, clients=40))
    train._population.cache_clear()
    yield
    train._population.cache_clear()
