"""Arrays become one row of integers; the sum of the rows becomes the weighted sums of the arrays."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmime.deploy.secure.fixed_point import Scaled, Words, levels_of, step_of, total_of
from fedmime.deploy.secure.options import MaskError, SecureSum
from fedmime.deploy.secure.parts import Part, layout_of, sums_of_parts, words_of_parts
from fedmime.errors import ConfigError

OPTIONS = SecureSum(16)
SHAPES = [(2, 3), (), (0, 4)], [(3,)]
NORMS = (2.0, 0.5)


def _parts(largest: float) -> list[Part]:
    shapes = [[jax.ShapeDtypeStruct(shape, np.float32) for shape in part] for part in SHAPES]
    return [Part(shapes[0], [largest, 1.0, largest], NORMS[0]), Part(shapes[1], [largest], NORMS[1])]


def _generators(client: int) -> list[np.random.Generator]:
    return [np.random.default_rng([client, number]) for number in range(2)]


@given(st.lists(st.floats(0.01, 1), min_size=3, max_size=8), st.integers(0, 2**32), st.floats(0.01, 10))
def test_the_sums_are_those_of_the_rounded_messages(weights: list[float], seed: int, scale: float) -> None:
    random, clients, largest = np.random.default_rng(seed), len(weights), max(weights)
    parts = _parts(largest)
    layout = layout_of(parts, 1, clients, OPTIONS)
    words, wanted = Words.zeros(layout), [[np.zeros(shape) for shape in part] for part in SHAPES]
    for client, weight in enumerate(weights):
        sent = [[scale * random.normal(size=shape) for shape in part] for part in SHAPES]
        ratios = [weight / largest, 1.0, weight / largest], [weight / largest]
        messages = [Scaled(*each) for each in zip(sent, ratios, NORMS, strict=True)]
        words = words.plus(words_of_parts(messages, [weight], OPTIONS, _generators(client)))
        for place, (message, draw) in enumerate(zip(messages, _generators(client), strict=True)):
            levels, start = levels_of(message, OPTIONS, draw), 0
            for total, factor in zip(wanted[place], parts[place].largest, strict=True):
                step = step_of(message.norm, OPTIONS) * factor
                total += step * levels[start : start + total.size].reshape(total.shape)
                start += total.size
    levels, scalars = total_of(words, layout, clients)
    found = sums_of_parts(levels, parts, clients, OPTIONS)
    for mine, theirs in zip(found, wanted, strict=True):
        for one, other in zip(mine, theirs, strict=True):
            assert one.dtype == np.float32
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-9)
    assert scalars[0] == pytest.approx(sum(weights), abs=1e-5)


def test_a_sum_that_no_clipped_messages_have_is_refused() -> None:
    levels = np.full(10, 3 * ((1 << 15) - 1))
    with pytest.raises(MaskError, match="the sum of 3 messages clipped to 2 is longer than possible"):
        sums_of_parts(levels, _parts(1.0), 3, OPTIONS)


def test_parts_that_need_more_bits_are_refused() -> None:
    shapes = [jax.ShapeDtypeStruct((5000,), np.float32)]
    with pytest.raises(ConfigError, match="bits must be larger, got 8"):
        layout_of([Part(shapes, [1.0], 1.0)], 0, 5, SecureSum(8))
