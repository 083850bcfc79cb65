r"""`reproduce drift`: two clients, three local steps, β = 0.5, and where FedAvg and Mime end.

FedAvg's fixed point $x$ solves $\sum_i (I - B_i^3)(x_i^\star - x) = 0$ with $B_i = I - \eta A_i$. The Hessians are
chosen such that $B_1^3 d = B_2^3 d$ along $d = x_1^\star - x_2^\star$ while $A_1 d \ne A_2 d$: so three steps lead
FedAvg exactly to the average of the client optima, which is not the optimum of the average.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from fedmime import algorithms, optimizers, theory
from fedmime.algorithms import Algorithm
from fedmime.algorithms.algorithm import params
from fedmime.engine import run_round
from fedmime.engine.sampling import Schedule
from fedmime.experiments.reproduce_order import Order

STEPS, BETA, ETA, ROUNDS = 3, 0.5, 1.0, 120
START = np.array([-0.6, 1.5])


def _turned(degrees: float, values: np.ndarray) -> np.ndarray:
    """The symmetric matrix with these eigenvalues, its first eigenvector at an angle."""
    a = np.radians(degrees)
    turn = np.array([[np.cos(a), -np.sin(a)], [np.sin(a), np.cos(a)]])
    return turn @ np.diag(values) @ turn.T


def two_clients() -> theory.Quadratics:
    """The clients of the figure."""
    optima = np.array([[1.0, 0.0], [-1.0, 0.0]])
    d = optima[0] - optima[1]
    one = _turned(25.0, np.array([-0.3, 0.7]))
    a = np.radians(-35.0)
    axes = np.array([[np.cos(a), -np.sin(a)], [np.sin(a), np.cos(a)]])
    other = _turned(-35.0, np.cbrt((axes.T @ np.linalg.matrix_power(one, STEPS) @ d) / (axes.T @ d)))
    hessians = np.stack([np.eye(2) - one, np.eye(2) - other]) / ETA
    return theory.Quadratics(hessians, np.einsum("nij,nj->ni", hessians, optima), np.zeros((2, 1, 2)))


def run(order: Order) -> dict[str, Any]:
    """The paths of both methods in float64, with the points they should or should not end at."""
    two = two_clients()
    methods: dict[str, Algorithm] = {
        "FedAvg": algorithms.fedavg(ETA, optimizers.momentum(BETA)),
        "Mime": algorithms.mime(optimizers.momentum(BETA), ETA),
    }
    with jax.enable_x64(True):
        paths = {name: path(algorithm, two) for name, algorithm in methods.items()}
    mean = two.client_optima.mean(axis=0)
    ends = {name: found[-1] for name, found in paths.items()}
    return {
        "setting": {"steps": STEPS, "beta": BETA, "eta": ETA, "rounds": ROUNDS, "scale": order.scale},
        "hessians": two.hessians.tolist(),
        "optimum": two.optimum.tolist(),
        "client_optima": two.client_optima.tolist(),
        "mean_of_optima": mean.tolist(),
        "paths": {name: found.tolist() for name, found in paths.items()},
        "to_optimum": {name: float(np.linalg.norm(end - two.optimum)) for name, end in ends.items()},
        "to_mean_of_optima": {name: float(np.linalg.norm(end - mean)) for name, end in ends.items()},
        "apart": float(np.linalg.norm(mean - two.optimum)),
    }


def path(algorithm: Algorithm, two: theory.Quadratics) -> np.ndarray:
    """The server models of all rounds."""
    schedule, population, problem = Schedule(2, None, None, STEPS, 0, "uniform"), two.population(), two.problem()
    state = algorithm.init({"x": jax.numpy.asarray(START)})
    found = [START]
    for t in range(ROUNDS):
        state, _ = run_round(algorithm, problem, state, schedule.cohort(algorithm, population, t))
        found.append(np.asarray(params(state)["x"]))
    return np.stack(found)


def local_steps(name: str, two: theory.Quadratics, server: np.ndarray) -> np.ndarray:
    """Both clients' way through the local steps of each round, by the formulas: [rounds, clients, steps + 1, dim]."""
    m, found = np.zeros(2), []
    for x in server:
        c = two.hessian @ x - two.linear.mean(axis=0)
        ways = []
        for A, b in zip(two.hessians, two.linear, strict=True):
            ys = [x]
            for _ in range(STEPS):
                g = A @ ys[-1] - b if name == "FedAvg" else (1 - BETA) * (A @ (ys[-1] - x) + c) + BETA * m
                ys.append(ys[-1] - ETA * g)
            ways.append(ys)
        found.append(ways)
        m = (1 - BETA) * c + BETA * m
    return np.asarray(found)
