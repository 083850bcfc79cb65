"""Synthetic(alpha, beta): classification whose clients differ in model (alpha) and in features (beta)."""

from __future__ import annotations

import numpy as np

from fedmime.data.arrays import in_memory
from fedmime.data.population import Columns, Field, Population, describe
from fedmime.errors import ConfigError
from fedmime.randomness import generator

_TEST_SHARE = 0.1


def synthetic(
    clients: int = 100, dim: int = 20, classes: int = 5, alpha: float = 1.0, beta: float = 1.0, seed: int = 0
) -> Population:
    r"""Clients $k$ with labels $\arg\max(W_k x + b_k)$, $W_k, b_k \sim N(u_k, 1)$, $u_k \sim N(0, \alpha^2)$.

    Features are $x \sim N(v_k, \Sigma)$, $\Sigma_{jj} = j^{-1.2}$, $v_k \sim N(B_k, 1)$, $B_k \sim N(0, \beta^2)$;
    sizes are 50 plus a lognormal(4, 2) draw, at most 5,000. A tenth of each client is held out.

    Reference: Li et al., 2018, appendix C.1, https://arxiv.org/abs/1812.06127
    """
    for label, value in (("clients", clients), ("dim", dim), ("classes", classes)):
        if not isinstance(value, int) or value < 1:
            raise ConfigError(f"synthetic: {label} must be a positive integer, got {value!r}")
    for label, value in (("alpha", alpha), ("beta", beta)):
        if not 0 <= value < float("inf"):
            raise ConfigError(f"synthetic: {label} must be finite and not negative, got {value!r}")
    identity = describe("synthetic", 1, clients, dim, classes, float(alpha), float(beta), seed)
    train, test = {}, {}
    for k in range(clients):
        name = f"client_{k:0{len(str(clients - 1))}d}"
        train[name], test[name] = _client(generator(seed, k), dim, classes, alpha, beta)
    fields = {"x": Field(np.dtype(np.float32), (dim,)), "y": Field(np.dtype(np.int32))}
    test_clients = in_memory("synthetic test", test, fields, identity=describe(identity, "test"))
    return in_memory("synthetic", train, fields, None, test_clients, identity)


def _client(rng: np.random.Generator, dim: int, classes: int, alpha: float, beta: float) -> tuple[Columns, Columns]:
    """One client's training and held-out columns."""
    size = 50 + min(int(rng.lognormal(4, 2)), 4950)
    u, shift = rng.normal(0, alpha), rng.normal(0, beta)
    weights, bias = rng.normal(u, 1, (dim, classes)), rng.normal(u, 1, classes)
    spread = np.arange(1, dim + 1) ** -0.6  # the square root of the covariance's diagonal
    x = rng.normal(shift, 1, dim) + spread * rng.standard_normal((size, dim))
    columns = {"x": x.astype(np.float32), "y": np.argmax(x @ weights + bias, axis=1).astype(np.int32)}
    cut = size - round(size * _TEST_SHARE)
    return {k: v[:cut] for k, v in columns.items()}, {k: v[cut:] for k, v in columns.items()}
