"""Pictures of the label mix: what is drawn, of whom, and in which order."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

import fedmime as fm
from fedmime.data import Population, plot_labels, plots
from fedmime.data.stats import label_counts, stats
from fedmime.errors import ConfigError, DataError


def population(clients: int, labels: int = 4) -> Population:
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 9, clients)
    told = {f"c{i}": {"x": np.zeros((n, 2)), "y": rng.integers(0, labels, n)} for i, n in enumerate(sizes)}
    return fm.data.from_arrays(told | {"nobody": {"x": np.zeros((0, 2)), "y": np.zeros(0, int)}})


def drawn(figure: Figure) -> np.ndarray:
    return np.asarray(figure.axes[0].images[0].get_array())


def test_few_clients_are_rows_with_their_names_sizes_and_shares(tmp_path: Path) -> None:
    few = population(5)
    figure = plot_labels(few, tmp_path / "few.png")
    assert (tmp_path / "few.png").read_bytes().startswith(b"\x89PNG")
    counts = np.stack([np.bincount(few.client_at(i)["y"], minlength=4) for i in range(6)])
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    np.testing.assert_allclose(drawn(figure), shares)
    ax = figure.axes[0]
    assert [text.get_text() for text in ax.get_yticklabels()] == list(few.ids)
    assert {text.get_text() for text in ax.texts} == {f"{share:.0%}" for share in shares[shares > 0]}


def test_many_clients_are_sorted_by_their_most_frequent_label_and_averaged() -> None:
    many = population(60)
    shares = drawn(plot_labels(many))
    assert len(shares) == 61
    assert (np.diff(shares.argmax(1)) >= 0).all()
    table = label_counts(many, np.arange(61), "y")
    assert table is not None
    order = plots._order(table)
    assert sorted(order) == list(range(61))
    np.testing.assert_allclose(shares, (table / np.maximum(table.sum(1, keepdims=True), 1))[order])
    averaged = plots._averaged(shares, 7)
    assert averaged.shape == (7, 4)
    np.testing.assert_allclose(averaged[0], shares[: 61 // 7].mean(0))
    fewer = drawn(plot_labels(many, most=40))
    assert len(fewer) == 40


def test_it_draws_into_given_axes_and_refuses_what_has_no_labels(tmp_path: Path) -> None:
    figure = Figure()
    assert plot_labels(population(3), ax=figure.add_subplot()) is figure
    with pytest.raises(DataError, match=r"field='x' is no field of whole numbers.*it has x: float64\[2\], y: int64"):
        plot_labels(population(3), field="x")
    with pytest.raises(ConfigError, match=r"path must end in .png, .svg or .pdf, got .*few.doc"):
        plot_labels(population(3), tmp_path / "few.doc")
    with pytest.raises(ConfigError, match="most must be a positive integer, got 0"):
        plot_labels(population(3), most=0)
    texts = fm.data.from_arrays({"a": {"t": ["one"]}})
    plots.plot_stats(texts, stats(texts), tmp_path / "sizes.svg")
    assert (tmp_path / "sizes.svg").read_text().startswith("<?xml")
