"""What is measured: algorithms, epochs and devices, who runs each, and how often."""

from __future__ import annotations

import dataclasses
from typing import Any

ALL = ("fedmime", "pytorch", "fedjax", "pfl")
RIVALS = ("fedmime", "pytorch", "fedjax")  # they have Mime
OURS = ("fedmime",)
ONE_CORE = "fedmime on one core"
APART = "two of these at once"  # on a core each: what a second core can bring on this machine at this time
ON_CORES = (ONE_CORE, APART)
BESIDE_FLOWER = ("fedmime", "flower")  # Ray is never quite idle, so Flower gets rounds of its own

RATES = {"logistic": 0.05, "mlp": 0.01, "cnn": 0.01, "char_lstm": 0.2}  # small: rounding must not grow over a round
REPEATS = {"logistic": 15, "mlp": 15, "cnn": 5, "char_lstm": 5}
QUICK_REPEATS = {"logistic": 5, "mlp": 5, "cnn": 3, "char_lstm": 3}
QUICK_MODELS = ("logistic", "mlp", "cnn")
QUICK_WORK: dict[str, dict[str, Any]] = {"cnn": {"clients": 4, "scale": 0.5}}


@dataclasses.dataclass(frozen=True)
class Case:
    """One thing to measure on one model."""

    name: str
    algorithm: str
    entrants: tuple[str, ...]
    base: str = "momentum"
    epochs: int = 1
    devices: int | None = None
    path: str = "round"  # or "simulate": fedmime draws cohorts and mini-batches itself
    rounds: int = 1  # of one request, for `simulate`
    repeats: int = 5
    stretch: float = 0  # seconds of requests, one after another, of which one repeat is the mean; at least one request

    def request(self, model: str) -> dict[str, Any]:
        """The case as an entrant is told it."""
        fields = dataclasses.asdict(self)
        return {**fields, "beta": 0.9, "eta": RATES[model]}


FEDAVG = Case("FedAvg", "fedavg", (*ALL, *ON_CORES))
MIME_LITE = Case("MimeLite", "mime_lite", RIVALS)
MIME = Case("Mime", "mime", RIVALS)
FLOWER = Case("FedAvg beside Flower", "fedavg", BESIDE_FLOWER)

_EPOCHS = (
    Case("FedAvg, E=10", "fedavg", OURS, epochs=10, path="simulate"),
    Case("Mime, E=10", "mime", OURS, epochs=10, path="simulate"),
)
SIMULATED = Case("FedAvg, simulate", "fedavg", (*OURS, *ON_CORES), path="simulate", rounds=3)
SHORT_ROUNDS = {"logistic": 60, "mlp": 20}  # so short that the host's part shows: half a second of them a request
STRETCH = {"logistic": 0.5, "mlp": 0.5}  # rounds so short that the peers' turn before a single one would show
QUICK_STRETCH = {"logistic": 0.1, "mlp": 0.1}
_MORE = (
    SIMULATED,
    Case("FedAvg, devices=1", "fedavg", OURS, devices=1),
    Case("Mime, devices=1", "mime", OURS, devices=1),
    Case("Mime with SGD", "mime", OURS, base="sgd"),
)


def cases(model: str, quick: bool = False) -> list[Case]:
    """The cases of a model in which no Ray runs."""
    if quick:
        chosen = [FEDAVG if model == "mlp" else dataclasses.replace(FEDAVG, entrants=(*RIVALS, *ON_CORES)), MIME]
        chosen += {"cnn": [*_EPOCHS], "char_lstm": []}.get(model, [MIME_LITE, SIMULATED, *_EPOCHS])
    else:
        chosen = [FEDAVG, MIME_LITE, MIME, *_MORE]
        chosen += [] if model == "char_lstm" else _EPOCHS
    chosen = [dataclasses.replace(c, rounds=SHORT_ROUNDS.get(model, c.rounds)) if c is SIMULATED else c for c in chosen]
    return [_timed(case, model, quick) for case in chosen]


def flower_case(model: str, quick: bool = False) -> Case | None:
    """FedAvg interleaved with Flower; in a quick run on one model."""
    if quick and model != "mlp":
        return None
    return _timed(FLOWER, model, quick)


def _timed(case: Case, model: str, quick: bool) -> Case:
    """The case with its repeats; long rounds are repeated less, short ones go in stretches."""
    repeats = (QUICK_REPEATS if quick else REPEATS)[model]
    stretch = (QUICK_STRETCH if quick else STRETCH).get(model, 0) if case.path == "round" else 0
    return dataclasses.replace(case, repeats=max(3, repeats // 3) if case.epochs > 1 else repeats, stretch=stretch)
