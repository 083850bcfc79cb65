"""Losses and a recipe for the tests of the back end on Ray, in a module that its workers can import."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedmime as fm
from engine.setting import PROBLEM
from fedmime.algorithms.algorithm import Client, Reply
from fedmime.algorithms.fedavg import FedAvg, ServerOptimized
from fedmime.hyperparameters import number, recipe, static
from fedmime.models.problem import Factors
from fedmime.validation import POSITIVE


def _noisy(params: Any, batch: Any, key: Any) -> jax.Array:
    """A linear part whose slope is random, as dropout makes it."""
    return PROBLEM.loss(params, batch, key) + jnp.vdot(jax.random.normal(key, (3,), jnp.float64), params["b"])


def _fail(x: Any) -> np.ndarray:
    raise ArithmeticError("no such number")


def _failing_later(params: Any, batch: Any, key: Any) -> jax.Array:
    """An error in the midst of a compiled program."""
    zero = jax.pure_callback(_fail, jax.ShapeDtypeStruct((), jnp.float64), jax.lax.stop_gradient(batch["x"][0, 0]))
    return PROBLEM.loss(params, batch, key) + zero


def _on_worker() -> bool:
    import ray

    return ray.is_initialized() and ray.get_runtime_context().get_actor_id() is not None


def _failing_on_workers(params: Any, batch: Any, key: Any) -> jax.Array:
    """An error where the program is traced, in a worker alone."""
    if _on_worker():
        raise ArithmeticError("no such number")
    return PROBLEM.loss(params, batch, key)


NOISY = fm.models.from_functions(PROBLEM.init, _noisy, PROBLEM.metrics)
FAILING = fm.models.from_functions(PROBLEM.init, _failing_on_workers)
FAILING_LATER = fm.models.from_functions(PROBLEM.init, _failing_later)


def counting(file: Path) -> Any:
    """The problem with a loss that writes to a file whenever a worker traces it; the driver traces it to evaluate."""

    def loss(params: Any, batch: Any, key: Any) -> jax.Array:
        if _on_worker():
            with file.open("a") as written:
                written.write(".")
        return PROBLEM.loss(params, batch, key)

    return fm.models.from_functions(PROBLEM.init, loss)


def watched(problem: fm.models.Problem, file: Path) -> fm.models.Problem:
    """A problem with factors that writes to a file whenever a worker computes one of its gradients, and which."""
    rules = problem.factors
    assert rules is not None

    def told(what: str, losses: Any) -> Any:
        def write(_: Any) -> np.ndarray:
            with file.open("a") as written:
                written.write(f"{what}\n")
            return np.zeros((), losses.dtype)

        if not _on_worker():
            return losses
        return losses + jax.pure_callback(write, jax.ShapeDtypeStruct((), losses.dtype), losses[0])

    def record(x: Any, batch: Any, key: Any) -> Any:
        losses, factors = rules.record(x, batch, key)
        return told("recorded", losses), factors

    def difference(y: Any, batch: Any, factors: Any, weights: Any, key: Any) -> Any:
        losses, gradient = rules.grad_difference(y, batch, factors, weights, key)
        return told("alone" if factors is None else "difference", losses), gradient

    return dataclasses.replace(problem, factors=Factors(record, rules.mean_grad, difference))


def telling() -> Any:
    """The problem with a loss that says so if this function was called on a worker."""
    on_worker = _on_worker()

    def loss(params: Any, batch: Any, key: Any) -> jax.Array:
        if on_worker:
            raise ArithmeticError("made on a worker")
        return PROBLEM.loss(params, batch, key)

    return fm.models.from_functions(PROBLEM.init, loss)


def tripled(eta: float) -> Any:
    """FedAvg with steps three times as long; no module has its class."""

    @recipe
    class Tripled(ServerOptimized):
        eta: Any = number(POSITIVE)
        optimizer: Any
        eta_server: Any = number(POSITIVE)
        apply: str = static()

        def local(self, message: Any, client: Client) -> Reply:
            (x,) = message
            return Reply(send=client.descend(lambda y, batch: y - 3 * self.eta * client.grad(y, batch), x) - x)

    plain: FedAvg = fm.algorithms.fedavg(eta)
    return Tripled(plain.eta, plain.optimizer, plain.eta_server, plain.apply)
