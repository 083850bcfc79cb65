"""The work every entrant does: clients' data, the order of their mini-batches and the first weights, in one file."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np

from benchmarks.shapes import CLASSES, IMAGE, LENGTH, VOCABULARY, parameters

Arrays = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Work:
    """A round's worth of work on one model."""

    model: str
    clients: int = 20
    batch: int = 10
    epochs: int = 10  # orders are written for this many; a case may use fewer
    seed: int = 0
    scale: float = 1.0  # of the clients' sizes
    full: bool = False  # whether all mini-batches are: sizes are rounded up

    @property
    def sequences(self) -> bool:
        return self.model == "char_lstm"

    def sizes(self) -> np.ndarray:
        """n_i: lognormal, mean about 200 in [20, 500]; of sequences a tenth of that."""
        whole = self.scale * (0.1 if self.sequences else 1.0)
        mean, low, high = 200 * whole, 20 * whole, 500 * whole
        spread = 0.7
        drawn = self._random("sizes").lognormal(math.log(mean) - spread**2 / 2, spread, self.clients)
        sizes = np.clip(drawn, max(low, 1), high).round().astype(np.int64)
        return -(-sizes // self.batch) * self.batch if self.full else sizes

    def steps(self, epochs: int = 1) -> int:
        """Local steps of the cohort; the last partial mini-batch of a client counts as one."""
        return epochs * int(np.sum(-(-self.sizes() // self.batch)))

    def arrays(self) -> Arrays:
        """Everything, under flat names; weights are called `init/<parameter>`."""
        sizes = self.sizes()
        data = self._sequences(sizes) if self.sequences else self._images(sizes)
        random = self._random("order")
        order = [np.concatenate([random.permutation(n) for n in sizes]) for _ in range(self.epochs)]
        weights = {f"init/{name}": value for name, value in self._weights().items()}
        facts = {"sizes": sizes, "batch": np.asarray(self.batch), "model": np.asarray(self.model)}
        return {**facts, **data, "order": np.stack(order).astype(np.int32), **weights}

    def write(self, path: Path) -> Path:
        """Save the arrays for the entrants."""
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, **self.arrays())  # pyright: ignore[reportArgumentType]
        return path

    def _random(self, purpose: str) -> np.random.Generator:
        return np.random.default_rng([self.seed, self.clients, *purpose.encode()])

    def _images(self, sizes: np.ndarray) -> Arrays:
        """Noisy copies of one random picture per class; every client has its own share of the classes."""
        random = self._random("images")
        pictures = random.random((CLASSES, *IMAGE), dtype=np.float32)
        shares = random.dirichlet(np.full(CLASSES, 0.5), len(sizes))
        y = np.concatenate([random.choice(CLASSES, n, p=p) for n, p in zip(sizes, shares, strict=True)])
        x = 0.7 * pictures[y] + 0.3 * random.random((len(y), *IMAGE), dtype=np.float32)
        return {"x": x, "y": y.astype(np.int32)}

    def _sequences(self, sizes: np.ndarray) -> Arrays:
        """Characters that follow one another by a noisy rule; y is x moved by one. 0, the pad, does not occur."""
        random = self._random("sequences")
        jumps = random.integers(1, 4, (int(sizes.sum()), LENGTH + 1))
        tokens = 1 + np.cumsum(jumps, axis=1) % (VOCABULARY - 1)
        return {"x": tokens[:, :-1].astype(np.int32), "y": tokens[:, 1:].astype(np.int32)}

    def _weights(self) -> Arrays:
        """Glorot-uniform weights, zero biases."""
        random = self._random("weights")
        return {name: _first_value(name, shape, random) for name, shape in parameters(self.model).items()}


def _first_value(name: str, shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    if name.endswith("/b"):
        return np.zeros(shape, np.float32)
    area = math.prod(shape[:-2])
    limit = math.sqrt(6 / (area * (shape[-2] + shape[-1])))
    return random.uniform(-limit, limit, shape).astype(np.float32)
