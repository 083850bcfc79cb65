"""Which files of the package one round of `simulate` enters, and how often a call leads from one file to another.

    python tests/engine/tracing.py [-v]

The trace begins when the round's cohort has been drawn and ends when its metrics are recorded. The problem and the
population are a user's own, so that what is traced is the path of a round and not the loss or the data set. Programs
were compiled in earlier rounds. `whole=True` also traces the draw of the next cohort, which happens meanwhile. The
functions by which JAX takes a pytree apart are left out: nobody follows them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fedmime as fm

ROOT = f"{Path(fm.__file__).parent}/"


class Entry(NamedTuple):
    """A function of the package that was entered, and the file of the package from which control came."""

    file: str
    function: str
    caller: str


class Trace:
    """Notes every function of the package that is entered while it is on."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def __enter__(self) -> Trace:
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not frame.f_code.co_filename.startswith(ROOT) or "flatten" in frame.f_code.co_qualname:
            return
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(ROOT):
            caller = caller.f_back
        if caller is not None:
            files = [code.co_filename.removeprefix(ROOT) for code in (frame.f_code, caller.f_code)]
            self.entries.append(Entry(files[0], frame.f_code.co_qualname, files[1]))

    @property
    def files(self) -> list[str]:
        """The files, in the order of their first visit."""
        return list(dict.fromkeys(entry.file for entry in self.entries))

    @property
    def switches(self) -> int:
        """How many calls lead from one file of the package to another."""
        return sum(entry.file != entry.caller for entry in self.entries)


class Population:
    """A user's own population, without a test set."""

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        self._clients = [
            {"x": random.normal(size=(n, 4)).astype(np.float32), "y": random.integers(0, 3, n)} for n in (5, 9, 7)
        ]
        self.sizes, self.test = np.array([5, 9, 7]), None

    def client_at(self, index: int) -> dict[str, np.ndarray]:
        return self._clients[index]


def one_round(algorithm: Any, backend: str, *, whole: bool = False) -> Trace:
    """The trace of the third round of a run; with `whole`, of its draw as well, which is the fourth round's."""

    def loss(params: Any, batch: Any, key: jax.Array) -> jax.Array:
        scores = jax.nn.log_softmax(batch["x"] @ params["w"])
        return -jnp.take_along_axis(scores, batch["y"][:, None], axis=1)[:, 0]

    problem = fm.models.from_functions(lambda key: {"w": jnp.zeros((4, 3), jnp.float32)}, loss)
    trace = Trace()

    def on_round(info: fm.Info, _: Any) -> None:
        if info.round == 1:
            trace.__enter__()
        if info.round == 2:
            trace.__exit__()

    fm.simulate(algorithm, problem, Population(), 4 if whole else 3, 1, 10, on_round=on_round, backend=backend)
    return trace


if __name__ == "__main__":
    for algorithm in (fm.algorithms.fedavg(0.1), fm.algorithms.mime(fm.optimizers.momentum(), 0.1)):
        for backend in ("local", "reference"):
            for whole in (False, True):
                trace = one_round(algorithm, backend, whole=whole)
                what = "with a draw" if whole else "after its draw"
                figures = f"{len(trace.files)} files, {trace.switches} switches"
                print(f"{type(algorithm).__name__} on {backend}, {what}: {figures}")
                for entry in trace.entries if "-v" in sys.argv else ():
                    print(f"    {entry.caller} -> {entry.file}: {entry.function}")
