"""From waypoints to curves: each shape becomes the same number of points, evenly spaced along the pen's way."""

from __future__ import annotations

import itertools
from functools import cache
from typing import NamedTuple

import numpy as np

from fedmime.data.strokes import CHARACTERS, SHAPES

POINTS = 64  # per shape: less than a pixel apart in a long letter
_FINE = 16  # samples between two waypoints, before they are spaced evenly


class Skeletons(NamedTuple):
    """All shapes of all characters, as arrays over shapes. A unit is the height of a capital."""

    points: np.ndarray  # [shapes, POINTS, 2]; y grows downwards from the baseline, as in images
    rounded: np.ndarray  # [shapes, POINTS, 2]; where the points go when corners are rounded off, as a displacement
    down: np.ndarray  # [shapes, POINTS - 1]; 1 where the pen draws between a point and the next, 0 where it is lifted
    first: np.ndarray  # [62 + 1]; the shapes of class c are first[c] to first[c + 1]


@cache
def skeletons() -> Skeletons:
    """Every shape in `strokes.py`, sampled."""
    drawn = [[_sampled(shape) for shape in SHAPES[character]] for character in CHARACTERS]
    first = np.cumsum([0, *(len(shapes) for shapes in drawn)])
    points, rounded, down = (
        np.stack(part).astype(np.float32) for part in zip(*(shape for shapes in drawn for shape in shapes), strict=True)
    )
    return Skeletons(points, rounded, down, first)


def _sampled(shape: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points, displacement of the rounded form, and pen of one shape; longer strokes get more of the points."""
    curves = [_curve(stroke) for stroke in shape.split("|")]
    lengths = np.array([_lengths(curve)[-1] for curve in curves])
    counts = np.maximum(2, np.floor(lengths / lengths.sum() * POINTS).astype(int))
    counts[np.argmax(counts)] += POINTS - counts.sum()
    strokes = [_even(curve, count) for curve, count in zip(curves, counts, strict=True)]
    down = np.ones(POINTS - 1)
    down[np.cumsum(counts)[:-1] - 1] = 0
    points = np.concatenate(strokes)
    return points, np.concatenate([_round_off(stroke) for stroke in strokes]) - points, down


def _curve(stroke: str) -> np.ndarray:
    """A stroke's waypoints joined by smooth arcs between its corners."""
    words = stroke.split()
    waypoints = np.array([[float(value) for value in word.rstrip("!").split(",")] for word in words]) / (100, -100)
    corners = [i for i, word in enumerate(words) if word.endswith("!")]
    ends = [0, *(i for i in corners if 0 < i < len(words) - 1), len(words) - 1]
    closed = len(ends) == 2 and len(words) > 2 and bool((waypoints[0] == waypoints[-1]).all())
    arcs = [_spline(waypoints[a : b + 1], closed) for a, b in itertools.pairwise(ends)]
    return np.concatenate([arcs[0], *(arc[1:] for arc in arcs[1:])])


def _spline(waypoints: np.ndarray, closed: bool) -> np.ndarray:
    """The centripetal Catmull-Rom curve through the waypoints."""
    before = waypoints[-2] if closed else 2 * waypoints[0] - waypoints[1]
    after = waypoints[1] if closed else 2 * waypoints[-1] - waypoints[-2]
    p = np.stack([before, *waypoints, after])
    knots = np.concatenate([[0], np.cumsum(np.sqrt(np.linalg.norm(np.diff(p, axis=0), axis=1)) + 1e-9)])
    pieces = [_piece(p[i : i + 4], knots[i : i + 4]) for i in range(len(p) - 3)]
    return np.concatenate([*pieces, waypoints[-1:]])


def _piece(p: np.ndarray, t: np.ndarray) -> np.ndarray:
    """The curve from the second to the third of four waypoints (Barry and Goldman's pyramid)."""
    at = np.linspace(t[1], t[2], _FINE, endpoint=False)[:, None]

    def mix(a: np.ndarray, b: np.ndarray, left: float, right: float) -> np.ndarray:
        return ((right - at) * a + (at - left) * b) / (right - left)

    low = [mix(p[i], p[i + 1], t[i], t[i + 1]) for i in range(3)]
    middle = [mix(low[i], low[i + 1], t[i], t[i + 2]) for i in range(2)]
    return mix(middle[0], middle[1], t[1], t[2])


def _lengths(curve: np.ndarray) -> np.ndarray:
    """The way along a curve up to each of its points."""
    return np.concatenate([[0], np.cumsum(np.linalg.norm(np.diff(curve, axis=0), axis=1))])


def _even(curve: np.ndarray, count: int) -> np.ndarray:
    """`count` points at equal distances along a curve."""
    way = _lengths(curve)
    at = np.linspace(0, way[-1], count)
    return np.stack([np.interp(at, way, curve[:, axis]) for axis in range(2)], axis=1)


def _round_off(stroke: np.ndarray, reach: int = 4) -> np.ndarray:
    """A stroke smoothed by a running mean that narrows towards its ends, which stay in place."""
    index = np.arange(len(stroke))
    room = np.minimum(reach, np.minimum(index, len(stroke) - 1 - index))
    sums = np.concatenate([np.zeros((1, 2)), np.cumsum(stroke, axis=0)])
    return (sums[index + room + 1] - sums[index - room]) / (2 * room + 1)[:, None]
