"""A task of one's own: points in the plane, a user in every district, and a small network in flax."""

import numpy as np
from flax import nnx

import fedmime as fm


class Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.hidden, self.out = nnx.Linear(2, 8, rngs=rngs), nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, x):
        return self.out(nnx.relu(self.hidden(x)))


def districts() -> fm.data.Population:
    rng = np.random.default_rng(0)
    centres = rng.normal(0, 2, (3, 2))

    def draw(n, weights):
        y = rng.choice(3, n, p=weights)
        return {"x": (centres[y] + rng.normal(0, 1, (n, 2))).astype(np.float32), "y": y}

    clients = {f"user-{i}": draw(12, rng.dirichlet([1, 1, 1])) for i in range(10)}
    return fm.data.from_arrays(clients, test=draw(60, [1 / 3] * 3))


def net() -> fm.models.Problem:
    return fm.models.from_flax(Net, input_shape=(2,), classes=3)


mine = fm.Task("districts", net, districts, rounds=4, cohort=4, eta=0.3, target=0.5)


def swift(eta: float, base: fm.optimizers.BaseOptimizer) -> fm.algorithms.Algorithm:
    return fm.algorithms.mime_lite(base, eta)
