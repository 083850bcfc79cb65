"""Three small problems with hand-written gradients; losses and gradients are means over the batch's examples."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from .tree import Array

Batch = Mapping[str, Array]
Params = Mapping[str, Array]


class Problem(NamedTuple):
    """`loss(params, batch) -> float` and its gradient `grad(params, batch) -> dict of arrays`."""

    loss: Callable[[Params, Batch], float]
    grad: Callable[[Params, Batch], dict[str, Array]]


def _log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def _cross_entropy(logits: Array, labels: Array) -> tuple[float, Array]:
    """Mean cross-entropy and its gradient in the logits."""
    n = len(labels)
    log_p = _log_softmax(logits)
    d_logits = np.exp(log_p)
    d_logits[np.arange(n), labels] -= 1
    return float(-log_p[np.arange(n), labels].mean()), d_logits / n


def logistic() -> Problem:
    """Multinomial logistic regression: params {"w": [d, c], "b": [c]}, batch {"x": [n, d], "y": [n] integers}."""

    def head(params: Params, batch: Batch) -> tuple[float, Array]:
        return _cross_entropy(batch["x"] @ params["w"] + params["b"], batch["y"])

    def grad(params: Params, batch: Batch) -> dict[str, Array]:
        _, d = head(params, batch)
        return {"w": batch["x"].T @ d, "b": d.sum(axis=0)}

    return Problem(lambda params, batch: head(params, batch)[0], grad)


def mlp() -> Problem:
    """One tanh layer, then `logistic` (same batches): params {"w1": [d, h], "b1": [h], "w2": [h, c], "b2": [c]}."""

    def forward(params: Params, batch: Batch) -> tuple[Array, float, Array]:
        hidden = np.tanh(batch["x"] @ params["w1"] + params["b1"])
        return hidden, *_cross_entropy(hidden @ params["w2"] + params["b2"], batch["y"])

    def grad(params: Params, batch: Batch) -> dict[str, Array]:
        hidden, _, d = forward(params, batch)
        d_hidden = (d @ params["w2"].T) * (1 - hidden**2)
        return {
            "w1": batch["x"].T @ d_hidden,
            "b1": d_hidden.sum(axis=0),
            "w2": hidden.T @ d,
            "b2": d.sum(axis=0),
        }

    return Problem(lambda params, batch: forward(params, batch)[1], grad)


def quadratic() -> Problem:
    """Each example is 0.5 sum(a (x - b)^2): params {"x": [d]}, batch {"a": [n, d], "b": [n, d]}."""

    def loss(params: Params, batch: Batch) -> float:
        return float((0.5 * batch["a"] * (params["x"] - batch["b"]) ** 2).sum(axis=1).mean())

    def grad(params: Params, batch: Batch) -> dict[str, Array]:
        return {"x": (batch["a"] * (params["x"] - batch["b"])).mean(axis=0)}

    return Problem(loss, grad)
