"""The result of an evaluation: figures over all examples, of every client, and before and after fine-tuning."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fedmime.engine.cohort import ClientId
from fedmime.engine.finetune import Finetuning
from fedmime.engine.metrics import worst
from fedmime.errors import ConfigError
from fedmime.validation import quote


class Spread(NamedTuple):
    """How a metric is spread over clients, each of which counts the same."""

    mean: float
    std: float
    min: float
    max: float
    worst_decile: float
    """The mean over the worst tenth of the clients, at least one: the lowest accuracies, or the highest of another
    metric such as a loss."""
    deciles: tuple[float, ...]
    """The nine deciles, 10 % to 90 %; the fifth is the median."""


@dataclasses.dataclass(frozen=True, repr=False)
class Evaluation:
    """What `evaluate` has measured.

    Attributes:
        pooled: every metric over all examples, weighed as the problem says.
        pooled_on: of which examples: `"test"`, `"train"` or `"held out"`.
        clients: for every metric, its value for each client [clients]; NaN where the weights of a client are zero.
        clients_on: on which examples clients were measured: `"test"`, `"train"` or `"held out"`.
        ids: the clients' names.
        examples: [clients] on how many examples each of them was measured.
        finetuned: the values of `clients` after fine-tuning, on the same examples; NaN for a client whose training
            examples cannot be used. None if nothing was fine-tuned.
        finetuning: how clients were fine-tuned.
        hold_out: the fraction of each client's examples that was held out, where it was.
    """

    pooled: Mapping[str, float]
    pooled_on: str
    clients: Mapping[str, np.ndarray]
    clients_on: str
    ids: tuple[ClientId, ...]
    examples: np.ndarray
    finetuned: Mapping[str, np.ndarray] | None = None
    finetuning: Finetuning | None = None
    hold_out: float | None = None

    def spread(self, metric: str, finetuned: bool = False) -> Spread:
        """How a metric is spread over the clients, after fine-tuning if asked for; clients with NaN do not count."""
        if finetuned and self.finetuned is None:
            raise ConfigError("spread: nothing was fine-tuned; give evaluate finetune=...")
        found = self.clients if self.finetuned is None or not finetuned else self.finetuned
        if metric not in found:
            raise ConfigError(f"spread: metric must be one of {', '.join(map(repr, found))}, got {quote(metric)}")
        values = found[metric][~np.isnan(found[metric])]
        if not len(values):
            return Spread(*[math.nan] * 5, deciles=(math.nan,) * 9)
        deciles = tuple(float(decile) for decile in np.percentile(values, range(10, 100, 10)))
        plain = float(values.mean()), float(values.std()), float(values.min()), float(values.max())
        return Spread(*plain, worst(metric, values), deciles)

    def to_dict(self, each: bool = True) -> dict[str, Any]:
        """The evaluation in plain values, as JSON can write them; NaN and infinities become None.

        Args:
            each: whether to include the figures of every client.
        """
        spreads = {name: self.spread(name)._asdict() for name in self.clients}
        found: dict[str, Any] = {
            "pooled_on": self.pooled_on,
            "pooled": dict(self.pooled),
            "clients_on": self.clients_on,
            "clients": len(self.ids),
            "spread": spreads,
        }
        if self.finetuned is not None and self.finetuning is not None:
            after = {name: self.spread(name, finetuned=True)._asdict() for name in self.finetuned}
            found |= {"finetuning": {**self.finetuning._asdict(), "hold_out": self.hold_out}, "finetuned": after}
        if each:
            found["each"] = {"id": list(self.ids), "examples": self.examples, **self.clients}
            found["each"] |= {f"finetuned_{name}": values for name, values in (self.finetuned or {}).items()}
        return _plain(found)

    def __repr__(self) -> str:
        """One line; of single clients it tells the first metric alone."""
        told = f"{self.pooled_on}: {', '.join(f'{name} {value:.4g}' for name, value in self.pooled.items())}"
        told += f"; {len(self.ids)} clients, {self.clients_on}"
        for name in list(self.clients)[:1]:
            told += f": {name} {_short(self.spread(name))}"
            if self.finetuned is not None and self.finetuning is not None and name in self.finetuned:
                told += f"; after {self.finetuning.steps} steps {_short(self.spread(name, finetuned=True))}"
        return f"Evaluation({told})"


def _short(spread: Spread) -> str:
    return f"{spread.mean:.4g} ± {spread.std:.2g}, worst decile {spread.worst_decile:.4g}"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
