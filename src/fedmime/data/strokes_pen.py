"""The pen: curves in pixels become grey images."""

from __future__ import annotations

import numpy as np

SIDE = 28  # pixels
_REACH = 2  # pixels that a blot reaches from the pixel it falls on
_MARGIN = _REACH + 1
_CANVAS = SIDE + 2 * _MARGIN
_NEAR = np.arange(-_REACH, _REACH + 1)
_BLOCK = 32  # images at a time, so that their blots stay in the processor's cache
_HALF = 2.3548  # the width of a Gaussian at half its height, in standard deviations


def draw(points: np.ndarray, pressure: np.ndarray, width: np.ndarray, edge: float) -> np.ndarray:
    """Grey images (uint8 [n, 28, 28], ink 255) of the ways of a pen.

    `points` [n, p, 2] are (x, y) in pixels; `pressure` [n, p - 1] is the ink between a point and the next, 0 where the
    pen is lifted; `width` [n] is the stroke's in pixels; a larger `edge` makes broad strokes crisper.
    """
    blocks = [slice(start, start + _BLOCK) for start in range(0, len(points), _BLOCK)]
    return np.concatenate([_draw(points[block], pressure[block], width[block], edge) for block in blocks])


def _draw(points: np.ndarray, pressure: np.ndarray, width: np.ndarray, edge: float) -> np.ndarray:
    middle = (points[:, 1:] + points[:, :-1]) / 2
    step = points[:, 1:] - points[:, :-1]
    sigma = (width / np.float32(_HALF))[:, None]
    # so scaled, a long straight stroke at pressure 1 is 1 along its middle and 1/2 at its edge
    ink = pressure * np.hypot(step[..., 0], step[..., 1]) / (np.float32(np.sqrt(2 * np.pi)) * sigma)
    grey = _blots(middle, ink, sigma)
    contrast = np.maximum(1, edge * width)[:, None, None]
    return np.rint(255 * np.clip((grey - 0.5) * contrast + 0.5, 0, 1)).astype(np.uint8)


def _blots(centres: np.ndarray, ink: np.ndarray, sigma: np.ndarray) -> np.ndarray:
    """The sum [n, 28, 28] of round Gaussian blots, each cut off two pixels from its centre."""
    n = len(centres)
    pixel = np.rint(np.clip(centres, -_MARGIN + _REACH, SIDE - 1 + _MARGIN - _REACH))
    outside = (np.abs(centres - pixel) > 0.5).any(-1)
    scale = (np.float32(np.sqrt(0.5)) / sigma)[..., None, None]
    blot = np.exp(-(((_NEAR.astype(np.float32) - (centres - pixel)[..., None]) * scale) ** 2))
    blot[..., 1, :] *= np.where(outside, 0, ink)[..., None]
    cell = (pixel + _MARGIN).astype(np.int64)
    cell = (np.arange(n)[:, None] * _CANVAS + cell[..., 1]) * _CANVAS + cell[..., 0]
    cells = cell[..., None, None] + (_NEAR[:, None] * _CANVAS + _NEAR)
    weights = blot[..., 1, :, None] * blot[..., 0, None, :]
    canvas = np.bincount(cells.ravel(), weights.ravel(), n * _CANVAS**2).reshape(n, _CANVAS, _CANVAS)
    return canvas[:, _MARGIN:-_MARGIN, _MARGIN:-_MARGIN].astype(np.float32)
