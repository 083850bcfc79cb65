"""When a run evaluates its model: which metrics are measured after a round.

There are three kinds: metrics on the server's test set (`test_...`), on all training examples of all clients
(`train_...`), and on the test examples of single clients, of which the mean and the mean over the worst tenth are
reported (`client_..._mean`, `client_..._worst_decile`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from fedmime.algorithms.algorithm import State, params
from fedmime.engine.backends.backend import Backend
from fedmime.engine.cohort import ClientId, client_id
from fedmime.engine.metrics import client_sums, evenly_spaced, mean_metrics, means, stream_metrics, worst
from fedmime.validation import count

_MOST_CLIENTS = 500  # clients that are evaluated one by one

EachClient = Callable[[int, list[ClientId], dict[str, np.ndarray], np.ndarray], None]
"""Receives the metrics of single clients: the round, their ids, the values of every metric [clients] and their numbers
of test examples [clients]."""


@dataclasses.dataclass(frozen=True)
class EvaluationSchedule:
    """When the model is evaluated. The last round is always evaluated.

    Attributes:
        evaluate_every: rounds between evaluations on the test set and, with `train`, on the training examples.
        clients_every: rounds between evaluations of single clients; 0 evaluates them after the last round only, None
            never.
        train: whether to evaluate on all examples of all clients, too.
    """

    evaluate_every: int
    clients_every: int | None
    train: bool = False

    def __post_init__(self) -> None:
        count("simulate", "evaluate_every", self.evaluate_every, least=1)
        if self.clients_every is not None:
            count("simulate", "clients_every", self.clients_every)

    def facts(self) -> dict[str, Any]:
        """The schedule in the identity of a run, under the name by which directories of earlier versions know it."""
        return {"kind": "Evaluation", **dataclasses.asdict(self)}

    def _all_due(self, population: Any, done: int, last: bool) -> bool:
        """Whether metrics over all examples are due. Without a test set and without `train` there are none."""
        return (self.train or population.test is not None) and (done % self.evaluate_every == 0 or last)

    def _each_due(self, population: Any, done: int, last: bool) -> bool:
        """Whether metrics of single clients are due; the population must have test examples by client."""
        due = self.clients_every is not None and (last or (self.clients_every > 0 and done % self.clients_every == 0))
        return due and getattr(population, "test_clients", None) is not None

    def measure(
        self,
        backend: Backend,
        population: Any,
        state: State,
        last: bool,
        each_client: EachClient,
    ) -> dict[str, float]:
        """Evaluate what is due after a round.

        At most `_MOST_CLIENTS` clients are evaluated one by one, evenly spaced in the population, so that the same
        clients are compared in every evaluation.

        Args:
            backend: computes the metrics.
            population: has the examples.
            state: the state after the round.
            last: whether the run ends with this round.
            each_client: receives the metrics of single clients.

        Returns:
            Metrics by name; an empty dictionary if nothing is due.
        """
        overall, each = self._all_due(population, state.round, last), self._each_due(population, state.round, last)
        if not overall and not each:
            return {}
        model = params(state)
        found = self._overall(backend, population, model) if overall else {}
        return found | (self._each(backend, population.test_clients, model, state.round, each_client) if each else {})

    def _overall(self, backend: Backend, population: Any, model: Any) -> dict[str, float]:
        """The metrics over all examples: of the test set and, with `train`, of all clients."""
        found: dict[str, float] = {}
        if population.test is not None:
            measured = mean_metrics(backend, model, population.test)
            found |= {f"test_{name}": value for name, value in measured.items()}
        if self.train:
            everyone = map(population.client_at, np.flatnonzero(population.sizes))
            measured = stream_metrics(backend, model, everyone, int(population.sizes.sum()))
            found |= {f"train_{name}": value for name, value in measured.items()}
        return found

    def _each(
        self, backend: Backend, held_out: Any, model: Any, done: int, each_client: EachClient
    ) -> dict[str, float]:
        """The mean and the worst decile of the metrics of single clients, on their test examples."""
        chosen = evenly_spaced(np.flatnonzero(held_out.sizes), _MOST_CLIENTS)
        measured = means(client_sums(backend, model, held_out, chosen))
        ids = [client_id(getattr(held_out, "ids", None), int(i)) for i in chosen]
        each_client(done - 1, ids, measured, held_out.sizes[chosen])
        found = {}
        for name, values in measured.items():
            found[f"client_{name}_mean"] = float(values.mean())
            found[f"client_{name}_worst_decile"] = worst(name, values)
        return found
