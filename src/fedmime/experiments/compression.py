"""`reproduce compression`: accuracy against bytes where messages are quantized or thinned out on their way."""

from __future__ import annotations

from typing import Any, NamedTuple

from fedmime.aggregation import Aggregator, chain, quantize, random_k
from fedmime.experiments.best_rate import at_best_rate, rounds_to
from fedmime.experiments.reproduce_order import Order
from fedmime.experiments.setting import Optimizer, Setting

MOMENTUM = Optimizer(beta=0.9)
METHODS: dict[str, dict[str, Any]] = {
    "FedAvg": {"algorithm": "fedavg", "base": "sgd"},
    "MimeLite": {"algorithm": "mime_lite", "base": "momentum", "optimizer": MOMENTUM},
    "Mime": {"algorithm": "mime", "base": "momentum", "optimizer": MOMENTUM},
}
WHOLE = 32  # bits of a weight that is not compressed


class Encoding(NamedTuple):
    """What messages become on their way."""

    up: int  # bits of a weight that a client sends
    down: int  # bits of a weight that the server sends
    fraction: float = 1.0  # of its weights that a client sends, drawn at random

    @property
    def label(self) -> str:
        """What people call it."""
        if self.fraction < 1:
            return f"{100 * self.fraction:g} % up, {self.down} bits down"
        return f"{self.up} bits" if self.up == self.down else f"{self.up} bits up, {self.down} down"

    @property
    def aggregator(self) -> Aggregator:
        """The encoding as `simulate` takes it."""
        return chain(random_k(self.fraction), quantize(self.up), down=quantize(self.down))


PLAIN = Encoding(WHOLE, WHOLE)
ENCODINGS = (
    PLAIN,
    Encoding(8, 8),
    Encoding(4, 8),
    Encoding(2, 8),
    Encoding(4, 4),
    Encoding(2, 2),
    Encoding(WHOLE, 8, 0.1),
)


class Scale(NamedTuple):
    """What is run at one scale."""

    model: str | None  # of the handwriting, or of the published files; None is the digits with two labels a client
    rounds: int
    cohort: int
    every: int
    seeds: int
    target: float
    rates: dict[str, tuple[float, ...]]
    encodings: tuple[Encoding, ...]


_LIGHT = (1.0, 0.316, 0.1, 0.0316)
# The second of each is what `make demo-rates` finds best of nine without compression; noisy messages may want less.
_DIGITS = {
    "FedAvg": (5.62, 1.78, 0.56, 0.178),
    "MimeLite": (10.0, 3.16, 1.0, 0.316),
    "Mime": (31.6, 10.0, 3.16, 1.0),
}
SCALES = {
    "full": Scale("mlp", 1000, 20, 10, 3, 0.7, dict.fromkeys(METHODS, _LIGHT), ENCODINGS),
    "small": Scale(None, 150, 20, 5, 5, 0.95, _DIGITS, ENCODINGS),
    "smoke": Scale(
        None, 4, 10, 2, 2, 0.5, {"FedAvg": (1.78,), "Mime": (10.0,)}, (PLAIN, Encoding(8, 8), ENCODINGS[-1])
    ),
}


def run(order: Order) -> dict[str, Any]:
    """Every method with every encoding, each at its own best rate, all with the same seeds and cohorts."""
    scale = SCALES[order.scale]
    seeds = range(scale.seeds if order.seeds is None else order.seeds)
    task = "digits-two-labels" if scale.model is None else order.task(scale.model)
    rows = []
    for method, rates in scale.rates.items():
        setting = Setting(
            task=task,
            rounds=scale.rounds,
            cohort=scale.cohort,
            epochs=1,
            evaluate_every=scale.every,
            **METHODS[method],
        )
        tick = order.counter(f"{method}, compressed", len(scale.encodings) * len(rates) * len(seeds))
        for encoding in scale.encodings:
            aggregation = None if encoding == PLAIN else encoding.aggregator
            found = at_best_rate(order, setting, rates, seeds, aggregation, tick)
            told = encoding._asdict() | {"method": method, "encoding": encoding.label}
            rows.append(told | found | {"rounds_to_target": rounds_to(found, scale.target)})
    facts = {"scale": order.scale, "task": task, "rounds": scale.rounds, "cohort": scale.cohort, "seeds": len(seeds)}
    return {"setting": facts | {"target": scale.target, "rates": scale.rates}, "rows": rows}
