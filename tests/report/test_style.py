"""Colours, lines and labels of figures."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmime.experiments import recipes
from fedmime.experiments.setting import ALGORITHMS, BASES, Setting
from fedmime.report import style
from fedmime.report.line_ends import spread

# Severe protanopia, deuteranopia and tritanopia as matrices on linear RGB (Machado, Oliveira and Fernandes, 2009).
SEEN = {
    "all cones": np.eye(3),
    "no red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "no blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def _linear(colour: str) -> np.ndarray:
    c = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def _lab(rgb: np.ndarray) -> np.ndarray:
    """CIE L*a*b* of a linear RGB colour under daylight."""
    to_xyz = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    t = to_xyz @ np.clip(rgb, 0, 1) / np.array([0.95047, 1.0, 1.08883])
    f = np.where(t > 0.008856, np.cbrt(t), 7.787 * t + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def _contrast(one: str, other: str) -> float:
    dark, light = sorted(float(_linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (one, other))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("ground", ["light", "dark"])
def test_methods_are_told_apart_by_colour_or_line(ground: str) -> None:
    """Two methods with the same dash differ in colour for every kind of colour vision; all stand out of the ground."""
    for one, other in itertools.combinations(style.METHODS.values(), 2):
        if one.dash == other.dash:
            a, b = (_linear(getattr(each, ground)) for each in (one, other))
            nearest = min(np.linalg.norm(_lab(np.array(m) @ a) - _lab(np.array(m) @ b)) for m in SEEN.values())
            assert nearest > 15, (one, other)
    page = {"light": "#ffffff", "dark": style.dark_colours()[style.PAPER]}[ground]
    assert all(_contrast(getattr(each, ground), page) >= 3 for each in style.METHODS.values())


@pytest.mark.parametrize(
    ("labels", "method", "base"),
    [
        (("MimeLiteAdam", "mime_lite (adam)", "MimeLite + Adam"), "MimeLite", "adam"),
        (("MimeMom", "Mime (momentum)"), "Mime", None),
        (("FedAvgAdagrad", "fedavg adagrad"), "FedAvg", "adagrad"),
        (("Loc-Mime", "loc_mime"), "Loc-Mime", None),
        (("MimeLiteMVR", "mime_lite_mvr"), "MimeLiteMVR", None),
        (("Server-only MVR", "server_only_mvr"), "Server-only MVR", None),
        (("Server-only", "server_only"), "Server-only", None),
        (("SCAFFOLD", "scaffold"), "SCAFFOLD", None),
    ],
)
def test_spellings_of_a_method_look_the_same(labels: tuple[str, ...], method: str, base: str | None) -> None:
    for label in labels:
        assert style.method(label) == method
        assert style.colour(label) == style.METHODS[method].light
        assert base is None or style.base(label) == base
    lines = [{k: v for k, v in style.line(label).items() if k != "label"} for label in labels]
    assert all(each == lines[0] for each in lines)


def test_every_algorithm_of_the_command_line_has_a_look() -> None:
    named = {name: style.method(recipes.label(Setting(algorithm=name, base="sgd"))) for name in ALGORITHMS}
    assert {name for name, found in named.items() if found is None} == set()
    assert len(set(named.values())) == len(ALGORITHMS)
    assert {name for name in BASES if style.base(f"Mime {name}") is None} == set()


def test_unknown_names_keep_their_colour_and_equal_lines_get_other_dashes() -> None:
    assert style.method("my own") is None
    assert style.colour("my own") == style.colour("My-Own")
    lines = style.lines(["Mime η=0.1", "Mime η=0.3", "Mime η=1", "FedAvg"])
    assert len({each["color"] for each in lines.values()}) == 2
    assert len({str((each["color"], each["linestyle"])) for each in lines.values()}) == 4
    assert lines["Mime η=0.1"] == style.line("Mime η=0.1")


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_labels_are_spread_as_little_as_needed(wanted: list[float]) -> None:
    gap = 0.08
    placed = spread(wanted, gap)
    order = np.argsort(wanted, kind="stable")
    assert np.all(np.diff(np.array(placed)[order]) >= gap - 1e-9)
    assert min(placed) >= -1e-9
    assert max(placed) <= 1 + 1e-9
    if len(wanted) == 1 or np.diff(np.sort(wanted)).min() >= gap:
        np.testing.assert_allclose(placed, wanted, atol=1e-12)


def test_labels_at_line_ends_do_not_overlap() -> None:
    from matplotlib.text import Text

    with style.styled():
        figure = style.figure()
        ax = figure.subplots()
        for label, look in style.lines(style.METHODS).items():
            ax.plot([0, 1], [0, 0.5 + 0.001 * len(label)], **look)
        style.label_lines(ax)
        figure.draw_without_rendering()
    boxes = sorted((Text.get_window_extent(text) for text in ax.texts), key=lambda box: box.y0)
    assert len(boxes) == len(style.METHODS)
    assert all(low.y1 <= high.y0 + 0.5 for low, high in itertools.pairwise(boxes))
    assert all(box.x0 >= ax.get_window_extent().x1 for box in boxes)
    assert all(box.x1 <= figure.bbox.x1 for box in boxes)


def test_a_dollar_in_a_label_is_no_formula() -> None:
    with style.styled():
        figure = style.figure()
        ax = figure.subplots()
        ax.plot([0, 1], [0, 1], **style.line(r"$\frac{$"))
        style.label_lines(ax)
        figure.draw_without_rendering()
    assert len(style.shown("x" * 99)) == 28
