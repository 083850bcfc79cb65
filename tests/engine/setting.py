"""A small classification problem, its populations, and one algorithm of each kind for the engine's tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedmime as fm
from fedmime.engine.backends.local.layout import Layout
from fedmime.engine.backends.specification import Local

DIM, CLASSES = 4, 3
a, o = fm.algorithms, fm.optimizers


def _init(key: jax.Array) -> dict[str, jax.Array]:
    w, b = jax.random.split(key)
    return {"w": jax.random.normal(w, (DIM, CLASSES), jnp.float64), "b": jax.random.normal(b, (CLASSES,), jnp.float64)}


def _logits(params: Any, batch: Any) -> jax.Array:
    return batch["x"] @ params["w"] + params["b"]


@jax.jit  # one program for the reference back end, which would run it operation by operation
def _loss(params: Any, batch: Any, key: Any) -> jax.Array:
    return -jnp.take_along_axis(jax.nn.log_softmax(_logits(params, batch)), batch["y"][:, None], axis=1)[:, 0]


def _metrics(params: Any, batch: Any) -> dict[str, tuple[jax.Array, jax.Array]]:
    correct = (_logits(params, batch).argmax(axis=1) == batch["y"]).astype(float)
    return {"accuracy": (correct, jnp.ones_like(correct)), "loss": (_loss(params, batch, None), batch["x"][:, 0] ** 2)}


PROBLEM = fm.models.from_functions(_init, _loss, _metrics)


def columns(rng: np.random.Generator, n: int) -> dict[str, np.ndarray]:
    """Random examples."""
    return {"x": rng.normal(size=(n, DIM)), "y": rng.integers(0, CLASSES, n)}


def population(sizes: Sequence[int], seed: int = 0, test: int = 11) -> fm.data.Population:
    """Clients of the given sizes."""
    rng = np.random.default_rng(seed)
    clients = {f"c{i}": columns(rng, n) for i, n in enumerate(sizes)}
    return fm.data.from_arrays(clients, test=columns(rng, test))


def roomy(devices: int = 2) -> Local:
    """A back end whose tables hold every cohort of these tests, so that all of them run one program."""
    layout = Layout(devices, 256)
    for name, needed in (("examples", 512), ("steps", 64), ("clients", 8), ("chunks", 8), ("pool", 512)):
        layout.size(name, needed)
    return Local(devices, layout)


def model(seed: int = 0) -> dict[str, np.ndarray]:
    """A random model."""
    rng = np.random.default_rng(seed)
    return {"w": rng.normal(size=(DIM, CLASSES)), "b": rng.normal(size=CLASSES)}


def same(one: Any, other: Any) -> bool:
    """Whether two pytrees are equal bit for bit."""
    ours, theirs = (jax.tree.leaves(tree) for tree in (one, other))
    return len(ours) == len(theirs) and all(np.array_equal(p, q, True) for p, q in zip(ours, theirs, strict=True))


def close(one: Any, other: Any, tolerance: float = 1e-12) -> None:
    """Assert that two pytrees of the same structure differ by rounding only."""
    jax.tree.map(lambda p, q: np.testing.assert_allclose(p, q, tolerance, tolerance), one, other)


def falling(start: float) -> Callable[[int], float]:
    """A schedule with another number in every round."""
    return lambda t: start / (1 + t)


ETA = falling(0.1)
KINDS = {
    "fedavg": a.fedavg(ETA, eta_server=falling(1.0)),
    "fedavg-adam": a.fedavg(ETA, o.adam(falling(0.9), falling(0.99), falling(1e-2)), falling(0.1)),
    "fedprox": a.fedprox(ETA, mu=falling(0.5)),
    "scaffold": a.scaffold(ETA),
    "feddyn": a.feddyn(ETA, alpha=falling(0.5)),
    "fedavg-client": a.fedavg(ETA, client=o.adamw(falling(0.9), eps=falling(1e-2), weight_decay=falling(0.5))),
    "fednova": a.fednova(ETA, falling(0.5), o.momentum(falling(0.5))),
    "fedvarp": a.fedvarp(ETA),
    "fedexp": a.fedexp(ETA, falling(1e-3), lambda t: 1 + 3 / (1 + t)),
    "ghbm": a.ghbm(ETA, falling(0.9), tau=2),
    "mime-adam": a.mime(o.adam(falling(0.9), falling(0.99), falling(1e-2)), ETA, eta_server=falling(1.0)),
    "mime_lite-split": a.mime_lite(o.momentum(falling(0.9)), ETA, split=True),
    "loc_mime": a.mime(o.momentum(falling(0.9)), ETA, state="local"),
    "mime_mvr": a.mime_mvr(ETA, falling(0.9), output="random"),
    "server_only": a.server_only(o.adam(falling(0.9)), ETA, apply="lookahead"),
    "server_only_mvr": a.server_only_mvr(ETA, falling(0.9)),
    "centralized": a.centralized(o.momentum(falling(0.9)), ETA),
}
# Those that are like others of `KINDS` in what a back end does for them; all together are every algorithm there is.
FURTHER = {
    "fedcm": a.fedcm(ETA, falling(0.5), o.momentum(falling(0.5)), falling(1.0)),
    "fedacg": a.fedacg(ETA, falling(0.85), falling(0.5)),
    "diloco": a.diloco(ETA, falling(0.9), falling(0.7), o.adamw(falling(0.9), eps=falling(1e-2))),
    "mime-split": a.mime(o.adam(falling(0.9), falling(0.99), falling(1e-2)), ETA, split=True),
    "mime-lookahead": a.mime(o.adam(falling(0.9)), ETA, apply="lookahead"),
    "mime_lite": a.mime_lite(o.adam(falling(0.9), falling(0.99), falling(1e-2)), ETA, eta_server=falling(1.0)),
    "mime_lite_mvr": a.mime_lite_mvr(ETA, falling(0.9), anchor="current", output="random"),
    "mime_mvr-split": a.mime_mvr(ETA, falling(0.9), split=True),
}
EVERY = KINDS | FURTHER
