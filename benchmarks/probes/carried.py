"""What the driver puts into Ray's object store and gets from it, with the time that it takes."""

from __future__ import annotations

import time
from typing import Any, Self

import jax
import numpy as np


class Carried:
    """Counts, in its block, what is at least as large as a model: parameters on their way, and answers.

    Args:
        least: bytes of the model.
    """

    def __init__(self, least: int) -> None:
        self._least, self._counting = least, True
        self.clear()

    def clear(self) -> None:
        """Begin again."""
        self._bytes, self._seconds = {"put": 0, "get": 0}, {"put": 0.0, "get": 0.0}

    def stop(self) -> None:
        """Count no more."""
        self._counting = False

    def figures(self) -> dict[str, float]:
        """Bytes and seconds of both ways."""
        found = {f"{way}_bytes": float(size) for way, size in self._bytes.items()}
        return found | {f"{way}_seconds": seconds for way, seconds in self._seconds.items()}

    def __enter__(self) -> Self:
        import ray

        self._ray, self._own = ray, (ray.put, ray.get)
        put, get = self._own

        def counting_put(value: Any, *given: Any, **named: Any) -> Any:
            start = time.perf_counter()
            ref = put(value, *given, **named)
            self._count("put", value, start)
            return ref

        def counting_get(ref: Any, *given: Any, **named: Any) -> Any:
            start = time.perf_counter()
            value = get(ref, *given, **named)
            self._count("get", value, start)
            return value

        ray.put, ray.get = counting_put, counting_get
        return self

    def __exit__(self, *_: object) -> None:
        self._ray.put, self._ray.get = self._own

    def _count(self, way: str, value: Any, start: float) -> None:
        seconds = time.perf_counter() - start
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(value) if isinstance(leaf, np.ndarray))
        if self._counting and size >= self._least:
            self._bytes[way] += size
            self._seconds[way] += seconds
