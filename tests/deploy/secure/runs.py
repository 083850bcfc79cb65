"""Secure runs with the nodes of `deploy.fleets`."""

from __future__ import annotations

from typing import Any

import fedmime as fm
from deploy.fleets import SETTINGS, Meddle, Meddling, deploy, nodes
from fedmime.deploy.secure.options import SecureSum

SECURE, CLIPPED = SecureSum(), fm.aggregation.clip(0.05, gradient=0.4)
STEP = 0.4 / (2**19 - 1)  # of the coarser one of the two kinds of message
ALL: dict[str, Any] = {**SETTINGS, "cohort_size": 5}  # everybody in every round, of whom four must stay


def secure_run(
    algorithm: Any, aggregation: Any = CLIPPED, meddle: Meddle | None = None, secure: SecureSum = SECURE, **others: Any
) -> fm.Run:
    """A secure run, by default of four clients a round, of whom three must stay."""
    transport = Meddling(nodes(algorithm, aggregation, secure=secure), meddle)
    return deploy(algorithm, aggregation, transport, secure=secure, **others)
