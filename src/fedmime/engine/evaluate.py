"""Evaluation: which metrics of a model are measured after a round, and how.

There are three kinds: metrics on the server's test set (`test_...`), on all training examples of all clients
(`train_...`), and on the test examples of single clients, of which the mean and the mean over the worst tenth are
reported (`client_..._mean`, `client_..._worst_decile`). A back end computes them in large batches of one shape, which
need one compiled program. The last batch is padded by repeating its final example, and the padding
is left out of the sums. Sums are in float64.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from fedmime.engine.backends.backend import Backend
from fedmime.engine.cohort import ClientId, Columns, client_id
from fedmime.validation import count

BATCH = 1024  # examples that are evaluated at once
_MOST_CLIENTS = 500  # clients that are evaluated one by one


@dataclasses.dataclass(frozen=True)
class Evaluation:
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
        model: Any,
        done: int,
        last: bool,
        each_client: Callable[[int, list[ClientId], dict[str, np.ndarray], np.ndarray], None],
    ) -> dict[str, float]:
        """Evaluate what is due after `done` rounds.

        At most `_MOST_CLIENTS` clients are evaluated one by one, evenly spaced in the population, so that the same
        clients are compared in every evaluation.

        Args:
            backend: computes the metrics.
            population: has the examples.
            model: the server model, a plain pytree.
            done: number of finished rounds.
            last: whether the run ends with this round.
            each_client: receives the metrics of single clients: the round, their ids, the values of every metric
                [clients] and their numbers of test examples [clients].

        Returns:
            Metrics by name; an empty dictionary if nothing is due.
        """
        found: dict[str, float] = {}
        if self._all_due(population, done, last):
            if population.test is not None:
                found |= {f"test_{name}": value for name, value in evaluate(backend, model, population.test).items()}
            if self.train:
                everyone = map(population.client_at, np.flatnonzero(population.sizes))
                overall = evaluate_all(backend, model, everyone, int(population.sizes.sum()))
                found |= {f"train_{name}": value for name, value in overall.items()}
        if self._each_due(population, done, last):
            held_out = population.test_clients
            chosen = np.flatnonzero(held_out.sizes)
            chosen = chosen[np.linspace(0, len(chosen) - 1, min(len(chosen), _MOST_CLIENTS)).astype(int)]
            each = evaluate_clients(backend, model, [held_out.client_at(int(i)) for i in chosen])
            ids = [client_id(getattr(held_out, "ids", None), int(i)) for i in chosen]
            each_client(done - 1, ids, each, held_out.sizes[chosen])
            for name, values in each.items():
                found |= {
                    f"client_{name}_mean": float(values.mean()),
                    f"client_{name}_worst_decile": _worst(name, values),
                }
        return found


def evaluate(backend: Backend, params: Any, columns: Columns) -> dict[str, float]:
    """The weighted mean of every metric over the examples of `columns`, each [examples, ...]."""
    return evaluate_all(backend, params, [columns], len(next(iter(columns.values()))))


def evaluate_all(backend: Backend, params: Any, parts: Iterable[Columns], examples: int) -> dict[str, float]:
    """The weighted mean of every metric over examples that come in parts, for data that does not fit into memory.

    Args:
        parts: columns of consecutive examples, for example client by client.
        examples: number of examples of all parts.
    """
    found = _means(backend, params, parts, np.zeros(examples, int), 1)
    return {name: float(means[0]) for name, means in found.items()}


def evaluate_clients(backend: Backend, params: Any, clients: Sequence[Columns]) -> dict[str, np.ndarray]:
    """Every metric of every client [clients], NaN for clients without examples.

    Batches contain the examples of several clients, so that many small clients cost no more than few large ones.
    """
    sizes = [len(next(iter(columns.values()))) for columns in clients]
    return _means(backend, params, clients, np.repeat(np.arange(len(clients)), sizes), len(clients))


def _means(
    backend: Backend, params: Any, parts: Iterable[Columns], group: np.ndarray, groups: int
) -> dict[str, np.ndarray]:
    """The weighted means of every metric by group.

    Args:
        parts: columns of consecutive examples.
        group: the group of each example [examples].
        groups: number of groups.

    Returns:
        For every metric an array [groups]; NaN for a group whose weights are zero.
    """
    sums: dict[str, np.ndarray] = {}
    done = 0
    width = min(BATCH, 1 << max(len(group) - 1, 0).bit_length())
    for batch in _batches(parts, width):
        n = len(next(iter(batch.values())))
        padded = {name: column[np.minimum(np.arange(width), n - 1)] for name, column in batch.items()}
        for name, (values, weights) in backend.metrics(params, padded).items():
            total = sums.setdefault(name, np.zeros((2, groups)))
            real = weights[:n].astype(np.float64)
            np.add.at(total[0], group[done : done + n], values[:n] * real)
            np.add.at(total[1], group[done : done + n], real)
        done += n
    with np.errstate(invalid="ignore"):
        return {name: value / weight for name, (value, weight) in sums.items()}


def _batches(parts: Iterable[Columns], width: int) -> Iterator[dict[str, np.ndarray]]:
    """The examples of all parts in order, `width` at a time; the last batch may be shorter.

    No more than one batch and one part are in memory at a time.
    """
    waiting: dict[str, np.ndarray] = {}
    for part in parts:
        waiting = {
            name: np.concatenate([waiting[name], column]) if waiting else column for name, column in part.items()
        }
        while len(next(iter(waiting.values()))) >= width:
            yield {name: column[:width] for name, column in waiting.items()}
            waiting = {name: column[width:] for name, column in waiting.items()}
    if waiting and len(next(iter(waiting.values()))):
        yield waiting


def _worst(name: str, values: np.ndarray) -> float:
    """The mean over the tenth of clients with the lowest accuracy, or for other metrics with the highest values."""
    ordered = np.sort(values)
    tenth = max(1, len(ordered) // 10)
    return float((ordered[:tenth] if name == "accuracy" else ordered[-tenth:]).mean())
