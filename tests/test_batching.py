"""The order in which each client takes its examples."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedmime.batching import generator, mini_batches

sizes, widths = st.integers(1, 40), st.integers(1, 12) | st.none()


def _real(rows: np.ndarray, counts: np.ndarray) -> list[int]:
    return [int(row) for batch, n in zip(rows, counts, strict=True) for row in batch[:n]]


@given(sizes, widths, st.integers(1, 4), st.integers(0, 99))
def test_every_epoch_takes_every_example_once(n: int, width: int | None, epochs: int, seed: int) -> None:
    rows, counts = mini_batches(n, width, epochs, None, generator(seed, 0, 0))
    width = width or n
    per_epoch = -(-n // width)
    assert rows.shape == (epochs * per_epoch, width)
    assert counts.tolist() == [*[width] * (per_epoch - 1), n - width * (per_epoch - 1)] * epochs
    for epoch in range(epochs):
        part = slice(epoch * per_epoch, (epoch + 1) * per_epoch)
        assert sorted(_real(rows[part], counts[part])) == list(range(n))


@given(sizes, widths, st.integers(1, 30), st.integers(0, 99))
def test_steps_are_the_first_of_as_many_epochs_as_it_takes(n: int, width: int | None, steps: int, seed: int) -> None:
    rows, counts = mini_batches(n, width, None, steps, generator(seed, 0, 0))
    all_rows, all_counts = mini_batches(n, width, steps, None, generator(seed, 0, 0))
    assert rows.tolist() == all_rows[:steps].tolist()
    assert counts.tolist() == all_counts[:steps].tolist()


@given(sizes, widths, st.integers(0, 99))
def test_padding_repeats_a_row_of_its_own_batch(n: int, width: int | None, seed: int) -> None:
    rows, counts = mini_batches(n, width, 1, None, generator(seed, 0, 0))
    for batch, count in zip(rows, counts, strict=True):
        assert set(batch[count:]) <= set(batch[:count])


def test_epochs_are_shuffled_anew() -> None:
    rows, _ = mini_batches(20, None, 2, None, generator(0, 0, 0))
    assert rows[0].tolist() != rows[1].tolist()


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**31), st.integers(0, 2**31))
def test_streams_are_functions_of_seed_round_and_client(seed: int, round_number: int, client: int) -> None:
    def first(*stream: int) -> float:
        return generator(*stream).random()

    assert first(seed, round_number, client) == first(seed, round_number, client)
    others = [
        first(seed, round_number, client + 1),
        first(seed, round_number + 1, client),
        first(seed - 1 if seed else 1, round_number, client),
        first(seed, round_number),
    ]
    assert first(seed, round_number, client) not in others
