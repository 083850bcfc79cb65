"""Messages as integers: bounded whatever they hold, unbiased, and summed exactly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedmime.deploy.messages import MOST_CLIENTS
from fedmime.deploy.secure.fixed_point import Layout, Scaled, Words, levels_of, shortened, step_of, total_of, words_of
from fedmime.deploy.secure.options import MaskError, SecureSum
from fedmime.errors import ConfigError

OPTIONS = SecureSum()
FLOATS = arrays(np.float64, st.integers(0, 12), elements=st.floats(allow_nan=False, allow_infinity=False))


@given(FLOATS, st.floats(1e-6, 1e6), st.floats(0, 1), st.integers(8, 30))
def test_no_message_is_longer_than_its_norm(array: np.ndarray, norm: float, weight: float, bits: int) -> None:
    options = SecureSum(bits)
    levels = levels_of(Scaled([array], [weight], norm), options, np.random.default_rng(0))
    assert np.linalg.norm(levels * step_of(norm, options)) <= norm * (1 + 1e-12)
    assert np.abs(levels).max(initial=0) < 1 << (bits - 1)


@given(arrays(np.float32, 7, elements=st.floats(-0.25, 0.25, width=32)), st.floats(0, 1))
def test_a_short_message_moves_by_less_than_a_step(array: np.ndarray, weight: float) -> None:
    levels = levels_of(Scaled([array[:3], array[3:]], [weight, 1.0], 1.0), OPTIONS, np.random.default_rng(1))
    wanted = array.astype(np.float64) * np.repeat([weight, 1.0], [3, 4])
    assert np.abs(levels * step_of(1.0, OPTIONS) - wanted).max() < step_of(1.0, OPTIONS)


def test_rounding_is_unbiased_and_zero_stays_zero() -> None:
    step = step_of(1.0, SecureSum(8))
    array = np.array([0.0, 0.3 * step, -0.3 * step])
    random = np.random.default_rng(2)
    drawn = np.array([levels_of(Scaled([array], [1.0], 1.0), SecureSum(8), random) for _ in range(4000)])
    assert not drawn[:, 0].any()
    np.testing.assert_allclose(drawn.mean(0), [0, 0.3, -0.3], atol=5 * 0.46 / 4000**0.5)


def test_the_norm_is_that_of_all_arrays_together_before_weights() -> None:
    message = Scaled([np.array([30.0]), np.array([40.0])], [0.5, 1.0], 1.0)
    levels = levels_of(message, OPTIONS, np.random.default_rng(0)) * step_of(1.0, OPTIONS)
    np.testing.assert_allclose(levels, [0.3, 0.8], atol=1e-5)


def test_an_array_that_is_averaged_and_summed_counts_once_in_the_norm() -> None:
    moved = np.array([3.0, 4.0])
    levels = levels_of(Scaled([moved, moved], [0.5, 1.0], 1.0), OPTIONS, np.random.default_rng(0))
    np.testing.assert_allclose(levels * step_of(1.0, OPTIONS), [0.3, 0.4, 0.6, 0.8], atol=2e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_messages_and_figures_that_are_not_finite_are_refused(bad: float) -> None:
    with pytest.raises(MaskError, match="NaN or infinite"):
        levels_of(Scaled([np.array([1.0, bad])], [1.0], 1.0), OPTIONS, np.random.default_rng(0))
    with pytest.raises(MaskError, match="scalars must be finite"):
        words_of(np.zeros(1, np.int64), [bad])


def test_too_few_bits_for_so_many_entries_are_refused() -> None:
    with pytest.raises(ConfigError, match="bits must be larger, got 8; give more bits for messages of 270000 entries"):
        shortened(1.0, 270_000, SecureSum(8))


@given(st.data(), st.integers(8, 25), st.integers(3, 60))
def test_the_sum_of_words_is_the_sum_of_integers(data: st.DataObject, bits: int, clients: int) -> None:
    most = (1 << (bits - 1)) - 1
    columns = st.lists(st.integers(-most, most), min_size=clients, max_size=clients)
    levels = np.array([data.draw(columns), [most] * clients, [-most] * clients]).T
    layout = Layout(3, 2, SecureSum(bits).width(clients))
    words = Words.zeros(layout)
    for row in levels:
        words = words.plus(Words.unpack(words_of(row, [0.5, -2.0]).pack(layout), layout))
    found, scalars = total_of(words, layout, clients)
    np.testing.assert_array_equal(found, levels.sum(0))
    np.testing.assert_array_equal(scalars, [0.5 * clients, -2.0 * clients])


def test_large_figures_are_cut_off_before_their_sum_can_wrap_round() -> None:
    layout, words = Layout(1, 1, 27), Words.zeros(Layout(1, 1, 27))
    for _ in range(MOST_CLIENTS):
        words = words.plus(words_of(np.zeros(1, np.int64), [1e30]))
    assert total_of(words, layout, MOST_CLIENTS)[1] == MOST_CLIENTS * 2.0**32


def test_a_mask_that_was_not_removed_is_noticed() -> None:
    pytest.importorskip("cryptography")
    layout = Layout(1, 1, 22)
    words = words_of(np.array([5]), [1.0])
    masked = words.plus(Words.mask(bytes(16), layout))
    with pytest.raises(MaskError, match="masks do not cancel"):
        total_of(masked, layout, 1)
    assert total_of(masked.minus(Words.mask(bytes(16), layout)), layout, 1)[0] == 5


@given(st.binary(max_size=40), st.integers(0, 5), st.integers(0, 2), st.integers(8, 32))
def test_any_bytes_of_the_right_length_are_words_and_others_are_refused(
    data: bytes, entries: int, scalars: int, width: int
) -> None:
    layout = Layout(entries, scalars, width)
    if len(data) != layout.nbytes:
        with pytest.raises(MaskError, match=f"must have {layout.nbytes} bytes, got {len(data)}"):
            Words.unpack(data, layout)
    else:
        assert len(Words.unpack(data, layout).entries) == entries
