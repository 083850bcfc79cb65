"""Combiners: how the server makes one message of those of all clients."""

from __future__ import annotations

import abc
from typing import Any, ClassVar

import jax

from fedmime.hyperparameters import recipe


class Combiner(abc.ABC):
    """What the server does with the decoded messages of a cohort. Subclasses are recipes."""

    linear: ClassVar[bool] = False
    """Whether it is the weighted mean, for which sums suffice; others need every message at once."""

    @abc.abstractmethod
    def combine(self, messages: Any, weights: jax.Array) -> Any:
        """One message of many.

        Args:
            messages: a pytree of arrays [clients, ...].
            weights: w_i of each client [clients]; zero for a client that sent nothing or was refused, whose row holds
                zeros and counts for nothing. The number of others is known only when the program runs.
        """


@recipe
class Mean(Combiner):
    """The weighted mean."""

    linear: ClassVar[bool] = True

    def combine(self, messages: Any, weights: jax.Array) -> Any:
        return jax.tree.map(
            lambda leaf: (
                (weights.astype(leaf.dtype) @ leaf.reshape(len(leaf), -1)).reshape(leaf.shape[1:])
                / weights.sum().astype(leaf.dtype)
            ),
            messages,
        )


def mean() -> Mean:
    """The weighted mean of the clients' messages, which is the default."""
    return Mean()
