"""A hand: what makes a writer's characters alike, and how they still differ from one another.

Shapes are bent by smooth fields. Part of a field is the writer's in everything, part in one shape, part is chance.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from fedmime.data.strokes_curve import POINTS, skeletons
from fedmime.data.strokes_pen import SIDE, draw

CLASSES = 62
_CAPITAL = 10.6  # pixels of a usual capital
_FIELDS = ((0, 1), (1, 0), (1, 1), (0, 2), (2, 0), (1, 2), (2, 1))  # waves across the box, in x and y
_SWINGS = 5  # waves along the way of the pen
_HOOKS = 2  # where it begins and where it ends
_DIGITS, _LETTERS = 0.51, "etaoinshrdlcumwfgypbvkjxqz"  # the share of digits; letters, the frequent ones first


class Hand(NamedTuple):
    """One writer's style."""

    size: float
    aspect: float
    slant: float
    turn: float
    small: float  # the size of small letters, relative to the usual
    shift: np.ndarray  # [2]; where the middle of the box lies, in pixels
    width: float
    edge: float
    darkness: float
    roundness: float
    sloppiness: float
    habits: np.ndarray  # [bends, 2]; bends of every shape
    quirks: np.ndarray  # [shapes, bends, 2]; bends of each shape
    shapes: np.ndarray  # [shapes]; cumulative preference among the shapes of a class
    classes: np.ndarray  # [62]; the share of each class


def draw_hand(rng: np.random.Generator) -> Hand:
    """A writer."""
    shapes = len(skeletons().points)
    sizes = _bend_sizes()
    return Hand(
        size=rng.lognormal(0, 0.14),
        aspect=rng.lognormal(0.14, 0.12),
        slant=rng.normal(0.11, 0.2),
        turn=rng.normal(0, 0.05),
        small=rng.lognormal(0, 0.11),
        shift=rng.normal(0, 0.2, 2),
        width=rng.lognormal(0.18, 0.13),
        edge=rng.uniform(0.55, 0.95),
        darkness=rng.uniform(0.9, 1.15),
        roundness=rng.normal(0.6, 0.5),
        sloppiness=rng.lognormal(0, 0.3),
        habits=rng.normal(0, 0.018, (len(sizes), 2)) * sizes,
        quirks=rng.normal(0, 0.018, (shapes, len(sizes), 2)) * sizes,
        shapes=_preferences(rng),
        classes=rng.dirichlet(40 * class_mix()),
    )


def write(hand: Hand, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Images (uint8 [n, 28, 28]) of the characters of these classes, in this hand."""
    form, n = skeletons(), len(labels)
    chosen = _choose(hand, labels, rng)
    haste = 0.012 * hand.sloppiness * rng.lognormal(0, 0.4, (n, 1, 1))
    slip = haste * rng.normal(0, 1, (n, len(_bend_sizes()), 2)) * _bend_sizes()
    bend = (hand.habits + hand.quirks[chosen] + slip).astype(np.float32)
    points = form.points[chosen] + np.float32(hand.roundness) * form.rounded[chosen]
    points += np.matmul(bends()[chosen], bend)
    points = _place(np.matmul(points, _frames(hand, labels, rng)), hand, rng)
    pressure = form.down[chosen] * _pressure(hand, n, rng)
    width = (hand.width * rng.lognormal(0, 0.06, n)).astype(np.float32)
    return draw(points, pressure, width, hand.edge)


@cache
def class_mix() -> np.ndarray:
    """How often each class is written by everybody together: half digits, and letters as in English, but evened out."""
    common = np.array([1 / np.sqrt(2 + _LETTERS.index(letter)) for letter in sorted(_LETTERS)])
    letters = np.concatenate([common, common])
    return np.concatenate([np.full(10, _DIGITS / 10), (1 - _DIGITS) * letters / letters.sum()])


@cache
def bends() -> np.ndarray:
    """The ways to bend each shape, [shapes, POINTS, bends]: fields of place, swings of time, hooks at the ends."""
    points = skeletons().points
    low, high = points.min(1, keepdims=True), points.max(1, keepdims=True)
    u = (points - low) / np.maximum(high - low, 0.3)
    place = [np.cos(np.pi * i * u[..., 0]) * np.cos(np.pi * j * u[..., 1]) for i, j in _FIELDS]
    t = np.linspace(0, 1, POINTS)
    time = [np.cos(np.pi * k * t) for k in range(1, _SWINGS + 1)]
    time += [np.maximum(0, 1 - 6 * t) ** 2, np.maximum(0, 6 * t - 5) ** 2]
    swings = np.broadcast_to(np.stack(time, axis=1), (len(points), POINTS, len(time)))
    return np.concatenate([np.stack(place, axis=2), swings], axis=2).astype(np.float32)


@cache
def _bend_sizes() -> np.ndarray:
    """How large each bend usually is, relative to the others: slow waves are larger than quick ones."""
    place = [1 / (i + j) ** 0.5 for i, j in _FIELDS]
    swings = [1 / k for k in range(1, _SWINGS + 1)]
    return np.array([*place, *swings, *[1.5] * _HOOKS])[:, None]


def _preferences(rng: np.random.Generator) -> np.ndarray:
    """How a writer shares out each class among its shapes, one of them mostly: a Dirichlet draw, cumulative."""
    first = skeletons().first
    draws = rng.standard_gamma(_usual_shapes())
    totals = np.add.reduceat(draws, first[:-1])
    before = np.cumsum(draws) - draws
    rank = np.repeat(before[first[:-1]], np.diff(first))
    return (before + draws - rank) / np.repeat(totals, np.diff(first))


@cache
def _usual_shapes() -> np.ndarray:
    """The usual share of each shape in its class, the first being the commonest, times how alike writers are."""
    shares = [0.6 ** np.arange(count) for count in np.diff(skeletons().first)]
    return np.concatenate([2 * share / share.sum() for share in shares])


def _choose(hand: Hand, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A shape for each label, after the hand's preferences."""
    first = skeletons().first
    most = int(np.diff(first).max())
    candidates = np.minimum(first[labels][:, None] + np.arange(most), first[labels + 1][:, None] - 1)
    passed = (hand.shapes[candidates] < rng.random(len(labels))[:, None]).sum(1)
    return np.minimum(first[labels] + passed, first[labels + 1] - 1)


def _frames(hand: Hand, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Size, aspect, slant and turn of each example, as matrices [n, 2, 2] to be multiplied from the right."""
    n = len(labels)
    size = _CAPITAL * hand.size * rng.lognormal(0, 0.09, n) * np.where(labels < 36, 1, hand.small)
    stretch = np.sqrt(hand.aspect * rng.lognormal(0, 0.1, n))
    slant = hand.slant + rng.normal(0, 0.08, n)
    turn = hand.turn + rng.normal(0, 0.06, n)
    wide, tall = size * stretch, size / stretch
    cos, sin = np.cos(turn), np.sin(turn)
    lean = -slant * tall  # y grows downwards
    rows = [wide * cos, wide * sin, lean * cos - tall * sin, lean * sin + tall * cos]
    return np.stack(rows, axis=1).reshape(n, 2, 2).astype(np.float32)


def _place(points: np.ndarray, hand: Hand, rng: np.random.Generator) -> np.ndarray:
    """The points with the middle of their box near the middle of the image."""
    middle = (points.min(1, keepdims=True) + points.max(1, keepdims=True)) / 2
    centre = (SIDE - 1) / 2 + hand.shift + rng.normal(0, 0.25, (len(points), 1, 2))
    return points - middle + centre.astype(np.float32)


def _pressure(hand: Hand, n: int, rng: np.random.Generator) -> np.ndarray:
    """Ink along the way of the pen, [n, POINTS - 1]."""
    t = np.linspace(0, 1, POINTS - 1, dtype=np.float32)
    waves = np.stack([np.cos(np.pi * k * t) for k in (1, 2, 3)])
    return np.float32(hand.darkness) + rng.normal(0, 0.06, (n, 3)).astype(np.float32) @ waves
