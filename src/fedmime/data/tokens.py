"""Token ids of sequence data: padding is 0, the vocabulary follows, the other marks come last."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedmime.data.population import Columns, Field


class Special(NamedTuple):
    """The ids that are not words or characters."""

    pad: int
    oov: int
    bos: int
    eos: int


def special(vocabulary: int) -> Special:
    """The marks around a vocabulary whose entries are 1 to `vocabulary`."""
    return Special(pad=0, oov=vocabulary + 1, bos=vocabulary + 2, eos=vocabulary + 3)


def size(vocabulary: int) -> int:
    """How many ids there are: what a model's embedding needs."""
    return vocabulary + 4


def fields(length: int) -> dict[str, Field]:
    """The columns of next-token prediction."""
    return {"x": Field(np.dtype(np.int32), (length,)), "y": Field(np.dtype(np.int32), (length,))}


def next_token(sequences: np.ndarray) -> Columns:
    """Inputs and targets out of sequences one longer than either."""
    return {"x": np.ascontiguousarray(sequences[:, :-1]), "y": np.ascontiguousarray(sequences[:, 1:])}


def counted(y: np.ndarray, left_out: tuple[int, ...]) -> np.ndarray:
    """Which targets an accuracy counts: all but the ids left out."""
    return ~np.isin(y, left_out)


def accuracy(predicted: np.ndarray, y: np.ndarray, left_out: tuple[int, ...]) -> float:
    """The share of counted targets that were predicted; NaN where none is counted."""
    mask = counted(y, left_out)
    return float((predicted == y)[mask].mean()) if mask.any() else float("nan")
