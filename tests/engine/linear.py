"""A small linear problem, its clients, and their metrics and steps by NumPy, for the tests of evaluation."""

import jax.numpy as jnp
import numpy as np

import fedmime as fm

DIM = 3


def squared_loss(params, batch, key):
    """Half the squared residual of each example."""
    return 0.5 * (batch["x"] @ params["w"] - batch["y"]) ** 2


def metrics(params, batch):
    """The loss, and whether the sign is right, weighed by an example's own number as the metrics of an LSTM are."""
    right = (jnp.sign(batch["x"] @ params["w"]) == jnp.sign(batch["y"])).astype(batch["x"].dtype)
    return {
        "accuracy": (right, batch["x"][:, 0] ** 2),
        "loss": (squared_loss(params, batch, None), jnp.ones_like(right)),
    }


PROBLEM = fm.models.from_functions(lambda key: {"w": jnp.zeros(DIM)}, squared_loss, metrics, name="linear")
PARAMS = {"w": np.array([0.5, -1.0, 2.0])}


def linear_columns(rng: np.random.Generator, n: int) -> dict[str, np.ndarray]:
    """Random examples."""
    return {"x": rng.normal(size=(n, DIM)), "y": rng.normal(size=n)}


def linear_clients(sizes, seed=0) -> dict[str, dict[str, np.ndarray]]:
    """Clients c0, c1, ... with so many examples each."""
    rng = np.random.default_rng(seed)
    return {f"c{i}": linear_columns(rng, n) for i, n in enumerate(sizes)}


SIZES = (5, 1, 0, 40, 7, 12, 3, 9, 9, 2, 30, 4)
PLAIN = fm.data.from_arrays(linear_clients(SIZES))
# The test clients stand in another order; one of them never trains, and one has nothing to test on.
TESTED = fm.data.from_arrays(
    linear_clients(SIZES),
    test_clients=fm.data.from_arrays(
        {"new": linear_columns(np.random.default_rng(8), 4)}
        | dict(reversed(linear_clients((3, 6, 5, 0, 50, 2, 9, 1, 4, 8, 3, 2), seed=1).items()))
    ),
)


def by_hand(params, data) -> dict[str, float]:
    """The metrics of a model on some examples, in NumPy."""
    out = data["x"] @ params["w"]
    right = np.sign(out) == np.sign(data["y"])
    return {
        "accuracy": float(np.average(right, weights=data["x"][:, 0] ** 2)),
        "loss": float(np.mean(0.5 * (out - data["y"]) ** 2)),
    }


def steps_of_sgd(data, rows_of_steps, eta) -> dict[str, np.ndarray]:
    """SGD from the model, one step after another."""
    w = PARAMS["w"].copy()
    for rows in rows_of_steps:
        x, y = data["x"][rows], data["y"][rows]
        w = w - eta * x.T @ (x @ w - y) / len(rows)
    return {"w": w}
