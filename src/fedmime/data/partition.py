"""Deal examples out to clients: each function is pure in its seed and gives a `Population`.

All of them take the further arguments of `build`: a pooled `test` set, and `test_clients`, which are a population of
their own (`by_column` of test data, for example) or a fraction of every client's examples that it holds out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedmime.data.arrays import checked, dealt, same_fields
from fedmime.data.population import Columns, Population, describe, empty
from fedmime.errors import ConfigError, DataError
from fedmime.randomness import generator

Parts = list[np.ndarray]  # which examples each client gets


def iid(x: Any, y: Any, clients: int, seed: int = 0, **kwargs: Any) -> Population:
    """Shuffle and deal evenly; sizes differ by at most one."""
    order = generator(seed).permutation(_examples(y, clients))
    return build(x, y, np.array_split(order, clients), seed, **kwargs)


def dirichlet(
    x: Any, y: Any, clients: int, alpha: float, seed: int = 0, min_size: int = 1, **kwargs: Any
) -> Population:
    """Label skew: each label's examples are shared out in proportions drawn from Dirichlet(alpha).

    A small alpha gives clients of few labels, a large one i.i.d. clients. Clients left with fewer than `min_size`
    examples take from the largest ones. Reference: Yurochkin et al., 2019, https://arxiv.org/abs/1905.12022
    """
    _examples(y, clients, min_size)
    _positive("alpha", alpha)
    rng = generator(seed)
    parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for members in by_value(np.asarray(y)):
        cuts = np.cumsum(rng.dirichlet(np.full(clients, alpha)))[:-1] * len(members)
        for part, piece in zip(parts, np.split(rng.permutation(members), cuts.astype(int)), strict=True):
            part.append(piece)
    return build(x, y, fill([np.concatenate(part) for part in parts], min_size), seed, **kwargs)


def quantity(x: Any, y: Any, clients: int, alpha: float, seed: int = 0, min_size: int = 1, **kwargs: Any) -> Population:
    """Quantity skew: i.i.d. labels, client sizes in proportions drawn from Dirichlet(alpha)."""
    examples = _examples(y, clients, min_size)
    _positive("alpha", alpha)
    rng = generator(seed)
    cuts = np.cumsum(rng.dirichlet(np.full(clients, alpha)))[:-1] * examples
    return build(x, y, fill(np.split(rng.permutation(examples), cuts.astype(int)), min_size), seed, **kwargs)


def shards(x: Any, y: Any, clients: int, per_client: int = 2, seed: int = 0, **kwargs: Any) -> Population:
    """Sort by label, cut into `clients * per_client` shards, deal each client `per_client` of them.

    Reference: McMahan et al., 2017, https://arxiv.org/abs/1602.05629
    """
    _positive("per_client", per_client)
    _examples(y, clients, per_client)
    rng = generator(seed)
    labels = np.asarray(y)
    shuffled = rng.permutation(len(labels))
    pieces = np.array_split(shuffled[np.argsort(labels[shuffled], kind="stable")], clients * per_client)
    hands = rng.permutation(len(pieces)).reshape(clients, per_client)
    return build(x, y, [np.concatenate([pieces[i] for i in hand]) for hand in hands], seed, **kwargs)


def by_label(
    x: Any, y: Any, clients: int | None = None, labels_per_client: int = 1, seed: int = 0, **kwargs: Any
) -> Population:
    """Each client holds `labels_per_client` labels and nothing else; by default one client per label.

    A label's examples are split evenly among the clients that hold it; labels nobody holds are refused.
    """
    groups = by_value(np.asarray(y))
    clients = len(groups) if clients is None else clients
    _examples(y, clients)
    if not 1 <= labels_per_client <= len(groups) or clients * labels_per_client < len(groups):
        raise ConfigError(
            f"by_label: clients={clients}, labels_per_client={labels_per_client} cannot hold {len(groups)} labels; "
            f"labels_per_client must lie in [1, {len(groups)}] and their product reach {len(groups)}"
        )
    rng = generator(seed)
    order = rng.permutation(len(groups)) if labels_per_client > 1 else np.arange(len(groups))
    parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
    holders: list[list[int]] = [[] for _ in groups]
    for slot in range(clients * labels_per_client):
        holders[order[slot % len(groups)]].append(slot // labels_per_client)
    for members, holding in zip(groups, holders, strict=True):
        for client, piece in zip(holding, np.array_split(rng.permutation(members), len(holding)), strict=True):
            parts[client].append(piece)
    return build(x, y, [np.concatenate(part) for part in parts], seed, **kwargs)


def by_column(x: Any, y: Any, column: Any, seed: int = 0, **kwargs: Any) -> Population:
    """One client per distinct value of `column` (a user, a device, a hospital); the value is the client's id."""
    values = np.asarray(column)
    if values.ndim != 1 or len(values) != len(y):
        raise DataError(
            f"by_column: column has shape {values.shape}; accepted is one value for each of {len(y)} examples"
        )
    ids = [str(value) for value in np.unique(values)]
    return build(x, y, by_value(values), seed, ids=ids, **kwargs)


def regroup(population: Population, clients: int) -> Population:
    """Fewer, larger clients: of n, client k holds the examples of the clients k, k + n, k + 2n, … of `population`.

    A deployment on few machines trains on such clients, and a simulation on the same ones gives the same model.
    """
    if not isinstance(clients, int | np.integer) or not 1 <= clients <= len(population):
        raise ConfigError(f"regroup: clients must lie in [1, {len(population)}], got {clients!r}")
    groups = [range(k, len(population), clients) for k in range(clients)]
    width = len(str(clients - 1))
    tested = population.has_own_test or population.test_clients is not None

    def read(index: int) -> Columns:
        parts = [population.client_at(i) for i in groups[index] if population.sizes[i]]
        parts = parts or [{name: empty(field) for name, field in population.fields.items()}]
        return {name: np.concatenate([part[name] for part in parts]) for name in population.fields}

    return Population(
        population.name,
        [f"node_{k:0{width}d}" for k in range(clients)],
        [int(population.sizes[group.start :: clients].sum()) for group in groups],
        population.fields,
        read,
        identity=lambda: describe("regroup", clients, population.identity()),
        test=(lambda: population.test or {}) if tested else None,
        check=population.check,
    )


def build(
    x: Any,
    y: Any,
    parts: Parts,
    seed: int = 0,
    ids: Sequence[str] | None = None,
    test: Mapping[str, Any] | None = None,
    test_clients: Population | float | None = None,
    name: str = "partition",
) -> Population:
    """A population whose client i holds the examples `parts[i]` of the pooled data, in increasing order.

    Args:
        seed: decides what clients hold out.
        test: the server's pooled test set; without it, all test clients together.
        test_clients: held-out data by client: a population, or the fraction of its examples, rounded to the nearest
            number, that every client holds out. It keeps at least one to train on.
    """
    pooled, fields = checked({"x": x, "y": y}, name)
    width = len(str(len(parts) - 1))
    ids = ids or [f"client_{i:0{width}d}" for i in range(len(parts))]
    if test is not None:
        test, found = checked(test, f"{name}: test set")
        same_fields(fields, found, f"{name}: test set")
    if isinstance(test_clients, Population):
        same_fields(fields, test_clients.fields, f"{name}: test_clients")
    elif test_clients is not None:
        parts, held = hold_out(parts, test_clients, seed)
        test_clients = dealt(name, pooled, fields, held, ids)
    return dealt(name, pooled, fields, [np.sort(part) for part in parts], ids, test, test_clients)


def hold_out(parts: Parts, fraction: float, seed: int = 0) -> tuple[Parts, Parts]:
    """What every client keeps to train on, and what it holds out: a random `fraction` of its examples."""
    if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 < fraction < 1:
        raise ConfigError(f"test_clients must be a population or a fraction in (0, 1), got {fraction!r:.80}")
    kept, held = [], []
    for client, part in enumerate(parts):
        shuffled = generator(seed, client, stream=5).permutation(np.sort(part))
        most = max(len(part) - 1, 0)
        out = min(round(len(part) * fraction), most)
        kept.append(shuffled[out:])
        held.append(np.sort(shuffled[:out]))
    return kept, held


def split(y: Any, fraction: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Positions to train on and positions held out: `fraction` of every label."""
    if not 0 < fraction < 1:
        raise ConfigError(f"split: fraction must lie in (0, 1), got {fraction!r}")
    rng = generator(seed, stream=1)
    held = [rng.permutation(members)[: round(len(members) * fraction)] for members in by_value(np.asarray(y))]
    out = np.zeros(len(y), bool)
    out[np.concatenate(held)] = True
    return np.flatnonzero(~out), np.flatnonzero(out)


def by_value(values: np.ndarray) -> Parts:
    """The positions of each distinct value, values in increasing order."""
    order = np.argsort(values, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(np.unique(values, return_inverse=True)[1][order])) + 1)


def fill(parts: Parts, min_size: int) -> Parts:
    """Move single examples from the largest client to those with fewer than `min_size`."""
    lists = [list(part) for part in parts]
    sizes = np.array([len(part) for part in lists])
    for short in np.flatnonzero(sizes < min_size):
        while sizes[short] < min_size:
            largest = int(sizes.argmax())
            lists[short].append(lists[largest].pop())
            sizes[short], sizes[largest] = sizes[short] + 1, sizes[largest] - 1
    return [np.asarray(part, np.int64) for part in lists]


def _examples(y: Any, clients: int, min_size: int = 1) -> int:
    """The number of examples, having checked that there are enough of them."""
    labels = np.asarray(y)
    if labels.ndim != 1:
        raise DataError(f"y has shape {labels.shape}; accepted is one label per example")
    if not isinstance(clients, int | np.integer) or clients < 1:
        raise ConfigError(f"clients must be a positive integer, got {clients!r}")
    if len(labels) < clients * min_size:
        raise ConfigError(f"clients={clients} with at least {min_size} each exceed the {len(labels)} examples given")
    return len(labels)


def _positive(label: str, value: float) -> None:
    if not 0 < value < float("inf"):
        raise ConfigError(f"{label} must be positive and finite, got {value!r}")
