"""A run at a glance: its line and its card, for any history."""

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmime.runs.glance import nice
from fedmime.runs.run import Run

HISTORY = {
    "round": np.arange(4),
    "loss": np.array([2.0, np.nan, 1.0, 0.5]),
    "test_accuracy": np.array([np.nan, 0.25, np.nan, 0.75]),
    "bytes_total": np.array([10, 20, 30, 4_200_000]),
    "reason": np.array([None, None, None, "<b>"], object),
}


def test_a_run_says_in_a_line_what_it_came_to() -> None:
    assert repr(Run(HISTORY)) == "Run(4 rounds, test accuracy 75.00%, loss 0.5, sent 4.2 MB)"
    assert repr(Run(HISTORY, path=Path("a/b"))).endswith("sent 4.2 MB; 'a/b')")
    assert repr(Run({})) == "Run(0 rounds)"


def test_a_notebook_shows_the_curves_of_what_was_measured() -> None:
    text = Run(HISTORY, path=Path("<script>"))._repr_html_()
    tree = ElementTree.fromstring(text)  # well-formed, whatever names it was given
    assert "<script>" not in text
    drawn = {svg.get("aria-label"): svg.find("polyline").get("points") for svg in tree.iter("svg")}
    assert drawn.keys() == {"test accuracy by round", "training loss by round"}
    assert [len(points.split()) for points in drawn.values()] == [2, 3]
    xs, ys = np.array([point.split(",") for point in drawn["training loss by round"].split()], float).T
    np.testing.assert_allclose(np.diff(xs)[0], 2 * np.diff(xs)[1], atol=0.2)  # rounds 1, 3 and 4
    np.testing.assert_allclose(np.diff(ys)[0], 2 * np.diff(ys)[1], atol=0.3)  # 2, 1 and 1/2; y grows downwards
    assert np.diff(ys)[0] > 0


@pytest.mark.parametrize("values", [[0.5], [0.5, 0.5], [-1e-12, 1e30], [np.nan, np.inf]])
def test_every_curve_can_be_drawn(values: list[float]) -> None:
    text = Run({"round": np.arange(len(values)), "loss": np.array(values)})._repr_html_()
    ElementTree.fromstring(text)
    assert "nan" not in text
    assert "inf" not in text


@given(st.floats(-1e3, 1e3), st.floats(1e-3, 1e9))
def test_ticks_are_even_and_enclose_their_range(low: float, width: float) -> None:
    ticks = nice(low, low + width)
    assert len(ticks) <= 7
    step = np.diff(ticks)
    np.testing.assert_allclose(step, step[0], rtol=1e-6)
    assert ticks[0] <= low + 1e-8 * step[0]
    assert ticks[-1] >= low + width - 1e-8 * step[0]


def test_long_runs_are_thinned_out_and_keep_their_last_round() -> None:
    text = Run({"round": np.arange(5001), "loss": np.linspace(1, 0, 5001)})._repr_html_()
    (points,) = (line.get("points").split() for line in ElementTree.fromstring(text).iter("polyline"))
    assert len(points) < 450
    (dot,) = ElementTree.fromstring(text).iter("circle")
    assert points[-1] == f"{dot.get('cx')},{dot.get('cy')}"
