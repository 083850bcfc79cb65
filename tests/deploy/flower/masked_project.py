"""The functions of a Flower project with masks; each of its three clients has the examples of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import fedmime as fm


def data(config: Mapping[str, Any]) -> Any:
    return fm.data.digits(clients=3, labels_per_client=4, seed=0).client_at(int(config["partition-id"]))


def test() -> Any:
    return fm.data.digits(clients=3, labels_per_client=4, seed=0).test


def problem() -> Any:
    return fm.models.logistic(input_shape=(8, 8, 1), classes=10)


def algorithm() -> Any:
    return fm.algorithms.fedavg(eta=0.1)


def aggregation() -> Any:
    return fm.aggregation.clip(1.0)


def secure() -> Any:
    return fm.deploy.SecureSum()
