"""How long a round takes on one machine and with workers of Ray, on paper: constants in, seconds out.

Nothing is measured here; `benchmarks/cluster.py` measures the constants. A round of Ray with w workers takes

    dispatch + broadcast + compute + gather + sum + server step

one after another, because the driver waits for all answers of a phase. With S the bytes of the model:

    dispatch  = round + phases · (trip + w · call) + clients · client
    broadcast = Σ over phases of down · S · (put + get) + (machines − 1) copies through the network
    compute   = the largest load of a worker, clients dealt longest first
    gather    = Σ over phases of up · S · (give + w · fetch) + a copy of every worker elsewhere through the network
    sum       = Σ over phases of w · up · S · add
    server    = parameters · server

The driver runs on the first machine, beside its workers; its link to the others carries every copy, one after another.
Ray may pass a broadcast on from machine to machine, which would be faster; answers have to cross that link in any case.
`local` is the same without dispatch to workers, broadcast, gather and sum, on the cores of one machine.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

BYTES = 4  # of a parameter
BATCH = 10
WORKERS = tuple(range(1, 65))


class Constants(NamedTuple):
    """What was measured, in seconds: of a round, a phase, a call, a client, a byte, or a parameter."""

    local_round: float
    """A round on one machine beside its clients."""
    local_client: float
    """A client on one machine beside its steps and examples."""
    round: float
    """The driver's own part of a round."""
    trip: float
    """A phase with one worker, where there is nothing to compute and little to carry."""
    call: float
    """The driver's work for each worker of a phase."""
    client: float
    """The driver's work for each client: it is drawn, dealt and sent."""
    worker_client: float
    """A worker's work for each client beside its steps and examples."""
    put: float
    """The driver writes a byte into the object store."""
    get: float
    """A worker reads it onto its device."""
    give: float
    """A worker writes a byte of its answer into the object store."""
    fetch: float
    """The driver reads it."""
    add: float
    """The driver adds it to the sum."""
    server: float
    """The server's step on a parameter."""


class Network(NamedTuple):
    """The link between the driver's machine and the others."""

    name: str
    bandwidth: float
    """Bytes a second."""
    latency: float
    """Seconds."""

    def seconds(self, copies: int, size: float) -> float:
        """So many copies over one link, one after another."""
        return self.latency + copies * size / self.bandwidth if copies else 0.0


HERE = Network("one machine", float("inf"), 0.0)  # however many cores it has


class Phase(NamedTuple):
    """One exchange of a round, in sizes of the model, and what clients compute in it."""

    down: float
    up: float
    trains: bool


class Method(NamedTuple):
    """An algorithm as its phases."""

    name: str
    phases: tuple[Phase, ...]


FEDAVG = Method("FedAvg", (Phase(1, 1, True),))
MIME = Method("Mime", (Phase(1, 1, False), Phase(2, 1, True)))  # x; then the mean gradient and the momentum
METHODS = (FEDAVG, MIME)


class Model(NamedTuple):
    """A model as what it costs on one core while the other cores are as busy."""

    name: str
    parameters: float
    steps: dict[str, float]
    """By method, seconds of a local step on ten examples."""
    example: float
    """Seconds of one example of a full gradient."""

    @property
    def size(self) -> float:
        """Bytes."""
        return BYTES * self.parameters


class Split(NamedTuple):
    """Where the seconds of a round go."""

    dispatch: float
    broadcast: float
    compute: float
    gather: float
    sum: float
    server: float

    @property
    def total(self) -> float:
        return sum(self)


class Setup(NamedTuple):
    """What is asked: a method and a model on clients of so many examples each."""

    method: Method
    model: Model
    examples: Sequence[int]


def lengths(clients: int, seed: int = 0) -> np.ndarray:
    """Examples of clients, of the lognormal sizes that the benchmarks of `simulate` use."""
    return np.clip(np.random.default_rng(seed).lognormal(np.log(165), 0.6, clients), 20, 500).astype(int)


def deal(costs: Iterable[float], parts: int) -> list[float]:
    """The load of every part: longest first, each to the part with the least so far, as the back ends deal."""
    loads = [0.0] * parts
    for cost in sorted(costs, reverse=True):
        heapq.heapreplace(loads, loads[0] + cost)
    return loads


def compute(setup: Setup, workers: int, client: float) -> float:
    """Seconds until the last worker has computed, over all phases; `client` is a client's cost beside its examples.

    Clients are dealt once a round, by all that they compute in it.
    """
    method, model, examples = setup
    n = np.asarray(examples)
    step, batches = model.steps[method.name], -(-n // BATCH)
    each = client + sum(batches * step if phase.trains else n * model.example for phase in method.phases)
    return max(deal(each.tolist(), workers))


def on_one_machine(setup: Setup, constants: Constants, cores: int = 2) -> Split:
    """A round with `local`."""
    dispatch = constants.local_round + constants.local_client * len(setup.examples)
    server = constants.server * setup.model.parameters
    return Split(dispatch, 0.0, compute(setup, cores, 0.0), 0.0, 0.0, server)


def with_ray(setup: Setup, constants: Constants, workers: int, network: Network, cores: int = 2) -> Split:
    """A round with so many workers of one core, on machines of `cores` cores."""
    method, model, examples = setup
    phases, machines = len(method.phases), -(-workers // cores)
    down, up = (model.size * sum(phase._asdict()[way] for phase in method.phases) for way in ("down", "up"))
    calls = phases * (constants.trip + workers * constants.call)
    return Split(
        dispatch=constants.round + calls + constants.client * len(examples),
        broadcast=down * (constants.put + constants.get) + phases * network.seconds(machines - 1, down / phases),
        compute=compute(setup, workers, constants.worker_client),
        gather=up * (constants.give + workers * constants.fetch)
        + phases * network.seconds(max(workers - cores, 0), up / phases),
        sum=workers * up * constants.add,
        server=constants.server * model.parameters,
    )


class Crossover(NamedTuple):
    """Where Ray begins to beat one machine, and where it is best."""

    workers: int | None
    """The fewest workers that take less time than one machine; None if no number of them does."""
    best: int
    speedup: float
    """Of the best number of workers over one machine."""


def crossover(
    setup: Setup, constants: Constants, network: Network, workers: Sequence[int] = WORKERS, cores: int = 2
) -> Crossover:
    """Compare every number of workers with one machine."""
    alone = on_one_machine(setup, constants, cores).total
    times = {w: with_ray(setup, constants, w, network, cores).total for w in workers}
    best = min(times, key=lambda w: times[w])
    return Crossover(next((w for w in workers if times[w] < alone), None), best, alone / times[best])


def interpolated(models: Sequence[Model], parameters: float, name: str = "dense") -> Model:
    """A model between measured ones of the same family: costs are straight lines between them in logarithms."""
    at, xs = np.log(parameters), np.log([model.parameters for model in models])
    between: Callable[[list[float]], float] = lambda costs: float(np.exp(np.interp(at, xs, np.log(costs))))
    steps = {method: between([model.steps[method] for model in models]) for method in models[0].steps}
    return Model(name, parameters, steps, between([model.example for model in models]))


def line(amounts: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """Seconds of nothing and of one more, neither negative, that fit measured ones with the least relative errors.

    Relative errors, because sizes differ by thousands: otherwise only the largest one would count.
    """
    x, y = np.asarray(amounts, float), np.asarray(seconds, float)
    fixed, each = np.linalg.lstsq(np.stack([1 / y, x / y], 1), np.ones(len(x)), rcond=None)[0]
    if fixed < 0:
        return 0.0, float(np.sum(x / y) / np.sum((x / y) ** 2))
    if each < 0:
        return float(np.sum(1 / y) / np.sum(1 / y**2)), 0.0
    return float(fixed), float(each)
