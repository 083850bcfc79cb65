"""Padding: sequences of differing lengths as rows of one length."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedmime.errors import ConfigError, DataError


@dataclasses.dataclass(frozen=True)
class Pad:
    """How sequences of differing lengths become rows of one length.

    Args:
        length: numbers in every row.
        value: what fills up short sequences at their end. `char_lstm` and `word_lstm` leave 0 out of loss and metrics.
        truncate: whether longer sequences lose their end; otherwise they are refused.
    """

    length: int
    value: float = 0
    truncate: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.length, bool) or not isinstance(self.length, int | np.integer) or self.length < 1:
            raise ConfigError(f"pad: length must be a positive integer, got {self.length!r}")
        if not isinstance(self.truncate, bool):
            raise ConfigError(f"pad: truncate must be True or False, got {self.truncate!r}")
        if isinstance(self.value, bool) or not isinstance(self.value, int | float | np.number):
            raise ConfigError(f"pad: value must be a number, got {self.value!r}")

    def __call__(self, rows: Sequence[np.ndarray], dtype: np.dtype, place: Callable[[int], str]) -> np.ndarray:
        """The rows as one array [rows, length]; `place` says which row is meant, for messages."""
        if np.asarray(self.value).astype(dtype) != self.value:
            raise ConfigError(f"pad: value must be a number that {dtype.name} can hold, got {self.value!r}")
        filled = np.full((len(rows), self.length), self.value, dtype)
        for number, row in enumerate(rows):
            if row.ndim != 1:
                raise DataError(f"{place(number)} has shape {row.shape}; only sequences of numbers can be padded")
            if len(row) > self.length and not self.truncate:
                told = f"lengthen it, or give Pad({self.length}, truncate=True)"
                raise DataError(f"{place(number)} has {len(row)} numbers, more than Pad(length={self.length}); {told}")
            filled[number, : min(len(row), self.length)] = row[: self.length]
        return filled


def check_pad(reader: str, pad: Mapping[str, Any]) -> None:
    """Raise unless every rule is a `Pad`."""
    for field, rule in pad.items():
        if not isinstance(rule, Pad):
            raise ConfigError(f"{reader}: pad[{field!r}] must be an fm.data.Pad, got {rule!r:.80}")
