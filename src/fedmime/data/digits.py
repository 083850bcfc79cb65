"""The small real population that needs no download: scikit-learn's digits, dealt out with label skew."""

from __future__ import annotations

import numpy as np

from fedmime.data import partition
from fedmime.data.population import Population
from fedmime.errors import ConfigError


def digits(clients: int = 50, alpha: float = 0.5, seed: int = 0) -> Population:
    """1,797 scanned digits of 8 x 8 pixels in [0, 1]: a fifth of each label is the test set, the rest the clients'.

    Labels are shared out by `partition.dirichlet(alpha)`.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ConfigError("digits needs scikit-learn: pip install scikit-learn") from error
    images, labels = load_digits(return_X_y=True)
    x = (images / 16.0).astype(np.float32).reshape(-1, 8, 8, 1)
    y = labels.astype(np.int32)
    train, held_out = partition.split(y, 0.2, seed)
    test = {"x": x[held_out], "y": y[held_out]}
    return partition.dirichlet(x[train], y[train], clients, alpha, seed, test=test, name="digits")
