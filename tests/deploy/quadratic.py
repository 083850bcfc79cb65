"""Quadratics on arrays of two shapes, as a problem of the library and as a learner in plain NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

import fedmime as fm
from deploy.affine_setting import Round, started
from fedmime.deploy.rule import Signature
from fedmime.engine.sampling import Schedule

SHAPES = {"b": (2,), "w": (3, 2)}


def _loss(params: Any, batch: Any, key: Any) -> Any:
    each = (0.5 * (batch[f"a_{n}"] * (params[n] - batch[f"t_{n}"]) ** 2).reshape(len(batch["a_b"]), -1) for n in SHAPES)
    return sum(part.sum(axis=1) for part in each)


QUADRATIC = fm.models.from_functions(lambda key: {n: jnp.zeros(s) for n, s in SHAPES.items()}, _loss, name="quadratic")


def columns(rng: np.random.Generator, n: int) -> dict[str, np.ndarray]:
    """Curvatures and targets of n examples."""
    return {f"{kind}_{name}": rng.random((n, *shape)) for kind in "at" for name, shape in SHAPES.items()}


class Quadratic:
    """A learner with the gradient written by hand; see `fedmime.deploy.affine_node.Learner`."""

    nbytes, identity = 8 * 8, "d" * 64

    def __init__(self, columns: dict[str, np.ndarray]) -> None:
        self.columns, self.examples = columns, len(columns["a_b"])

    def bind(self, server: Signature) -> None:
        assert [each.name for each in server.parameters] == ["b", "w"]

    def take(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        return arrays

    give = take

    def gradient(self, y: Sequence[np.ndarray], rows: np.ndarray) -> tuple[float, list[np.ndarray]]:
        parts = [(self.columns[f"a_{n}"][rows], p - self.columns[f"t_{n}"][rows]) for n, p in zip("bw", y, strict=True)]
        loss = sum(float((0.5 * a * d**2).sum()) for a, d in parts) / len(rows)
        return loss, [(a * d).mean(axis=0) for a, d in parts]


def before(
    algorithm: Any, seed: int = 0, n: int = 5, batch: int | None = 2, epochs: Any = 1, steps: Any = None
) -> Round:
    """A round of one client with random curvatures and targets."""
    rng = np.random.default_rng(seed)
    params = {name: rng.normal(size=shape) for name, shape in SHAPES.items()}
    schedule = Schedule(1, batch, epochs, steps, seed, "examples")
    return started(algorithm, QUADRATIC, params, columns(rng, n), schedule, 3, seed)
