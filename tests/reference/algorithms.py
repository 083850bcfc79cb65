"""One round of every algorithm: `algorithm(state, clients, grad, ...) -> state`. Nothing is modified in place.

Weights are normalised over the clients that enter a mean. With split cohorts `clients` make the local steps and
`gradient_clients` the full gradients; by default they are the same.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .optimizers import Optimizer, Statistics, sgd
from .tree import Array, Tree, flatten, weighted_sum

Batch = Mapping[str, Array]
Grad = Callable[[Tree, Batch], Mapping[str, Array]]


@dataclass(frozen=True)
class Client:
    """Mini-batches in the order of the local steps, all the data, a weight (default: examples) and an id."""

    batches: Sequence[Batch]
    full: Batch
    weight: float | None = None
    id: Hashable = None


def in_batches(full: Batch, size: int, epochs: int = 1, rng: np.random.Generator | None = None) -> list[Batch]:
    """Cut the data into mini-batches, the last one perhaps smaller; with `rng`, shuffled anew for each epoch."""
    n = count(full)
    batches: list[Batch] = []
    for _ in range(epochs):
        order = np.arange(n) if rng is None else rng.permutation(n)
        batches += [{k: a[order[i : i + size]] for k, a in full.items()} for i in range(0, n, size)]
    return batches


def count(batch: Batch) -> int:
    """Number of examples."""
    return len(next(iter(batch.values())))


def normalised_weights(clients: Sequence[Client]) -> list[float]:
    """Weights that sum to 1."""
    raw = [count(client.full) if client.weight is None else client.weight for client in clients]
    return [w / sum(raw) for w in raw]


def mean_gradient(x: Tree, clients: Sequence[Client], grad: Grad) -> Tree:
    """h(x) = sum_j w_j grad f_j(x); a client of weight 0 is not asked."""
    asked = [(w, client) for w, client in zip(normalised_weights(clients), clients, strict=True) if w > 0]
    return weighted_sum([w for w, _ in asked], [Tree(grad(x, client.full)) for _, client in asked])


def _mean_model(clients: Sequence[Client], ys: Sequence[Tree]) -> Tree:
    return weighted_sum(normalised_weights(clients), ys)


def _move(x: Tree, clients: Sequence[Client], ys: Sequence[Tree], eta_server: float) -> Tree:
    """x + eta_server * sum_i w_i (y_i - x)."""
    return x + eta_server * _mean_model(clients, [y - x for y in ys])


def _descend(x: Tree, client: Client, eta: float, direction: Callable[[Tree, Batch], Tree]) -> Tree:
    y = x
    for batch in client.batches:
        y = y - eta * direction(y, batch)
    return y


# FedAvg and its relatives: local SGD, the server optimizer takes x - proposal for a gradient.


class FedAvgState(NamedTuple):
    """Server model and the server optimizer's statistics."""

    x: Tree
    s: Statistics


class ScaffoldState(NamedTuple):
    """With the server's control variate c and the clients' c_i by id (absent: 0)."""

    x: Tree
    s: Statistics
    c: Tree
    c_i: dict[Hashable, Tree]


class FedDynState(NamedTuple):
    """With the server's h and the clients' h_i by id (absent: 0)."""

    x: Tree
    s: Statistics
    h: Tree
    h_i: dict[Hashable, Tree]


def fedavg_init(x: Mapping[str, Any], server: Optimizer | None = None) -> FedAvgState:
    """First state of `fedavg` and `fedprox`."""
    x = Tree(x)
    return FedAvgState(x, (server or sgd()).init(x))


def scaffold_init(x: Mapping[str, Any], server: Optimizer | None = None) -> ScaffoldState:
    """First state of `scaffold`."""
    x = Tree(x)
    return ScaffoldState(x, (server or sgd()).init(x), x.zeros(), {})


def feddyn_init(x: Mapping[str, Any], server: Optimizer | None = None) -> FedDynState:
    """First state of `feddyn`."""
    x = Tree(x)
    return FedDynState(x, (server or sgd()).init(x), x.zeros(), {})


def _server_step(
    x: Tree, s: Statistics, proposal: Tree, server: Optimizer | None, eta_server: float, apply: str
) -> tuple[Tree, Statistics]:
    server = server or sgd()
    g = x - proposal
    return x - eta_server * server.step(apply)(g, s), server.V(g, s)


def fedavg(
    state: FedAvgState,
    clients: Sequence[Client],
    grad: Grad,
    eta: float,
    *,
    server: Optimizer | None = None,
    eta_server: float = 1.0,
    apply: str = "lookahead",
) -> FedAvgState:
    """Local SGD; the pseudo-gradient x - sum_i w_i y_i goes into the server optimizer."""
    x, s = state
    ys = [_descend(x, client, eta, lambda y, batch: Tree(grad(y, batch))) for client in clients]
    return FedAvgState(*_server_step(x, s, _mean_model(clients, ys), server, eta_server, apply))


def fedprox(
    state: FedAvgState,
    clients: Sequence[Client],
    grad: Grad,
    eta: float,
    mu: float,
    *,
    server: Optimizer | None = None,
    eta_server: float = 1.0,
    apply: str = "lookahead",
) -> FedAvgState:
    """FedAvg on local losses with mu/2 |y - x|^2 added."""
    x, s = state

    def direction(y: Tree, batch: Batch) -> Tree:
        return Tree(grad(y, batch)) + mu * (y - x)

    ys = [_descend(x, client, eta, direction) for client in clients]
    return FedAvgState(*_server_step(x, s, _mean_model(clients, ys), server, eta_server, apply))


def scaffold(
    state: ScaffoldState,
    clients: Sequence[Client],
    grad: Grad,
    eta: float,
    population: int,
    *,
    server: Optimizer | None = None,
    eta_server: float = 1.0,
    apply: str = "lookahead",
) -> ScaffoldState:
    """Local gradients are corrected by c - c_i; c_i+ = c_i - c + (x - y_i) / (K eta), c += sum_i (c_i+ - c_i) / N.

    K is the client's own number of steps; a client without steps keeps its c_i. The sum over the cohort is unweighted.
    """
    x, s, c, old = state
    _check_ids(clients)
    kept, ys, moved = dict(old), [], x.zeros()
    for client in clients:
        c_i = old.get(client.id, x.zeros())
        y = _descend(x, client, eta, lambda y, batch, c_i=c_i: Tree(grad(y, batch)) - c_i + c)
        ys.append(y)
        if client.batches:
            kept[client.id] = c_i - c + (x - y) / (len(client.batches) * eta)
            moved = moved + (kept[client.id] - c_i)
    x, s = _server_step(x, s, _mean_model(clients, ys), server, eta_server, apply)
    return ScaffoldState(x, s, c + moved / population, kept)


def feddyn(
    state: FedDynState,
    clients: Sequence[Client],
    grad: Grad,
    eta: float,
    alpha: float,
    population: int,
    *,
    server: Optimizer | None = None,
    eta_server: float = 1.0,
    apply: str = "lookahead",
) -> FedDynState:
    """Local gradients get -h_i + alpha (y - x); the server proposes sum_i w_i y_i - h / alpha with the new h.

    h_i -= alpha (y_i - x) and h -= alpha / N sum_i (y_i - x), the sum over the cohort unweighted.
    """
    x, s, h, old = state
    _check_ids(clients)
    kept, ys = dict(old), []
    for client in clients:
        h_i = old.get(client.id, x.zeros())
        y = _descend(x, client, eta, lambda y, batch, h_i=h_i: Tree(grad(y, batch)) - h_i + alpha * (y - x))
        ys.append(y)
        kept[client.id] = h_i - alpha * (y - x)
        h = h - (alpha / population) * (y - x)
    proposal = _mean_model(clients, ys) - h / alpha
    return FedDynState(*_server_step(x, s, proposal, server, eta_server, apply), h, kept)


def _check_ids(clients: Sequence[Client]) -> None:
    ids = [client.id for client in clients]
    if len(set(ids)) < len(ids) or None in ids:
        raise ValueError(f"a stateful algorithm needs distinct client ids, got {ids}")


# Relatives of FedAvg from other papers. Clients' optimizers start anew in every round.


class MomentumState(NamedTuple):
    """With a momentum that clients are sent (`fedcm`), or that the server keeps to itself (`fedacg`)."""

    x: Tree
    s: Statistics
    m: Tree


class GHBMState(NamedTuple):
    """With all models so far, the newest last."""

    x: Tree
    s: Statistics
    models: list[Tree]


class FedVARPState(NamedTuple):
    """With the last update y_i of every client that was seen, by id (absent: 0)."""

    x: Tree
    s: Statistics
    y_i: dict[Hashable, Tree]


def momentum_init(x: Mapping[str, Any], server: Optimizer | None = None) -> MomentumState:
    """First state of `fedcm` and `fedacg`."""
    x = Tree(x)
    return MomentumState(x, (server or sgd()).init(x), x.zeros())


def ghbm_init(x: Mapping[str, Any], server: Optimizer | None = None) -> GHBMState:
    """First state of `ghbm`."""
    x = Tree(x)
    return GHBMState(x, (server or sgd()).init(x), [x])


def fedvarp_init(x: Mapping[str, Any], server: Optimizer | None = None) -> FedVARPState:
    """First state of `fedvarp`."""
    x = Tree(x)
    return FedVARPState(x, (server or sgd()).init(x), {})


def local_optimizer(
    state: FedAvgState,
    clients: Sequence[Client],
    grad: Grad,
    eta: float,
    base: Optimizer,
    decay: float = 0.0,
    *,
    server: Optimizer | None = None,
    eta_server: float = 1.0,
    apply: str = "lookahead",
) -> FedAvgState:
    """FedAvg whose clients run `base`; decoupled weight decay first shrinks y by 1 - eta decay, then the base steps."""
    x, s = state
    ys = []
    for client in clients:
        y, inner = x, base.init(x)
        for batch in client.batches:
            g = Tree(grad(y, batch))
            y = (1 - eta * decay) * y - eta * base.ahead(g, inner)
            inner = base.V(g, inner)
        ys.append(y)
    return FedAvgState(*_server_step(x, s, _mean_model(clients, ys), server, eta_server, apply))


def fedcm(
    state: MomentumState,
    clients: Sequence[Client],
    grad: Grad,
    eta: float,
    alpha: float,
    *,
    server: Optimizer | None = None,
    eta_server: float = 1.0,
    apply: str = "lookahead",
) -> MomentumState:
    """Steps along alpha grad + (1 - alpha) Delta; then Delta is the mean update over -eta K, K the mean steps."""
    x, s, delta = state
    ys = [
        _descend(x, client, eta, lambda y, batch: alpha * Tree(grad(y, batch)) + (1 - alpha) * delta)
        for client in clients
    ]
    proposal = _mean_model(clients, ys)
    steps = sum(w * len(client.batches) for w, client in zip(normalised_weights(clients), clients, strict=True))
    return MomentumState(*_server_step(x, s, proposal, server, eta_server, apply), m=(x - proposal) / (eta * steps))


def ghbm(
    state: GHBMState,
    clients: Sequence[Client],
    grad: Grad,
    eta: float,
    beta: float,
    tau: int,
    *,
    server: Optimizer | None = None,
    eta_server: float = 1.0,
    apply: str = "lookahead",
) -> GHBMState:
    """Each of a client's J steps adds beta / (tau J) (x^t - x^{t - tau}); models before the first are the first."""
    x, s, models = state
    past = models[max(len(models) - 1 - tau, 0)]
    ys = []
    for client in clients:
        y = x
        for batch in client.batches:
            y = y - eta * Tree(grad(y, batch)) + beta / (tau * len(client.batches)) * (x - past)
        ys.append(y)
    x, s = _server_step(x, s, _mean_model(clients, ys), server, eta_server, apply)
    return GHBMState(x, s, [*models, x])


def fedacg(
    state: MomentumState, clients: Sequence[Client], grad: Grad, eta: float, lam: float, beta: float
) -> MomentumState:
    """Clients start from x + lam m, with a penalty beta/2 |y - x - lam m|^2; m = lam m + mean update, x += m."""
    x, s, m = state
    start = x + lam * m

    def direction(y: Tree, batch: Batch) -> Tree:
        return Tree(grad(y, batch)) + beta * (y - start)

    updates = [_descend(start, client, eta, direction) - start for client in clients]
    m = lam * m + _mean_model(clients, updates)
    return MomentumState(x + m, s, m)


def fednova(
    state: FedAvgState,
    clients: Sequence[Client],
    grad: Grad,
    eta: float,
    mu: float,
    rho: float = 0.0,
    *,
    server: Optimizer | None = None,
    eta_server: float = 1.0,
    apply: str = "lookahead",
) -> FedAvgState:
    """x - tau_eff sum_i p_i eta d_i, where d_i = G_i a_i / |a_i|_1 and tau_eff = sum_i p_i |a_i|_1.

    The columns of G_i are the client's gradients. Its local steps have momentum m = rho m + (1 - rho) (g + mu (y - x)).
    The vector a_i is found from this recursion, one gradient at a time: its k-th entry is how far a gradient of one in
    step k, and of zero in all others, leads.
    """
    x, s = state
    total, effective = x.zeros(), 0.0
    for p, client in zip(normalised_weights(clients), clients, strict=True):
        y, m, gradients, steps = x, x.zeros(), [], len(client.batches)
        for batch in client.batches:
            gradients.append(Tree(grad(y, batch)))
            m = rho * m + (1 - rho) * (gradients[-1] + mu * (y - x))
            y = y - eta * m
        a = []
        for k in range(steps):
            way = speed = 0.0
            for j in range(steps):
                speed = rho * speed + (1 - rho) * (float(j == k) - mu * eta * way)
                way += speed
            a.append(way)
        norm = float(np.abs(a).sum())
        d = weighted_sum(a, gradients) / norm
        total, effective = total + p * d, effective + p * norm
    proposal = x - effective * eta * total
    return FedAvgState(*_server_step(x, s, proposal, server, eta_server, apply))


def fedexp(
    state: FedAvgState, clients: Sequence[Client], grad: Grad, eta: float, eps: float, cap: float = np.inf
) -> FedAvgState:
    """x - eta_g mean(Delta_i), eta_g = max(1, mean |Delta_i|^2 / (2 (|mean Delta_i|^2 + eps))), at most cap."""
    x, s = state
    updates = [x - _descend(x, client, eta, lambda y, batch: Tree(grad(y, batch))) for client in clients]
    mean = _mean_model(clients, updates)
    squares = sum(w * float(flatten(d) @ flatten(d)) for w, d in zip(normalised_weights(clients), updates, strict=True))
    eta_g = max(1.0, squares / (2 * (float(flatten(mean) @ flatten(mean)) + eps)))
    return FedAvgState(x - min(eta_g, cap) * mean, s)


def fedvarp(
    state: FedVARPState,
    clients: Sequence[Client],
    grad: Grad,
    eta: float,
    population: int,
    *,
    server: Optimizer | None = None,
    eta_server: float = 1.0,
    apply: str = "lookahead",
) -> FedVARPState:
    """v = mean_S(Delta_i - y_i) + 1/N sum_j y_j goes into the server optimizer; then y_i = Delta_i on S."""
    x, s, old = state
    _check_ids(clients)
    updates = [x - _descend(x, client, eta, lambda y, batch: Tree(grad(y, batch))) for client in clients]
    changes = [d - old.get(client.id, x.zeros()) for d, client in zip(updates, clients, strict=True)]
    everybody = weighted_sum([0.0, *(1 / population for _ in old)], [x, *old.values()])
    v = _mean_model(clients, changes) + everybody
    kept = old | {client.id: d for d, client in zip(updates, clients, strict=True)}
    return FedVARPState(*_server_step(x, s, x - v, server, eta_server, apply), kept)


# Mime and its relatives: the base optimizer at every step, its statistics from full gradients at x.


class MimeState(NamedTuple):
    """Server model and the base optimizer's statistics; also the state of `server_only` and `centralized`."""

    x: Tree
    s: Statistics


def mime_init(x: Mapping[str, Any], base: Optimizer) -> MimeState:
    """First state of `mime`, `mime_lite`, `server_only` and `centralized`."""
    x = Tree(x)
    return MimeState(x, base.init(x))


def mime(
    state: MimeState,
    clients: Sequence[Client],
    grad: Grad,
    base: Optimizer,
    eta: float,
    *,
    eta_server: float = 1.0,
    apply: str = "frozen",
    statistics: str = "fixed",
    gradient_clients: Sequence[Client] | None = None,
    prime: bool = False,
    corrected: bool = True,
) -> MimeState:
    """Local steps y -= eta U(g, s), g = grad(y; batch) - grad(x; batch) + c with c = h(x); then s = V(c, s).

    `statistics="local"` (Loc-): the client's copy of s moves after each of its steps, s_i = V(g, s_i), and is dropped.
    `prime=True`: a gradient-only round, s moves and x does not. `corrected=False` is MimeLite.
    """
    x, s = state
    follows = {"fixed": False, "local": True}[statistics]
    step = base.step(apply)
    c = mean_gradient(x, clients if gradient_clients is None else gradient_clients, grad)
    if prime:
        return MimeState(x, base.V(c, s))

    def local(client: Client) -> Tree:
        y, s_i = x, s
        for batch in client.batches:
            g = Tree(grad(y, batch))
            if corrected:
                g = g - grad(x, batch) + c
            y = y - eta * step(g, s_i)
            if follows:
                s_i = base.V(g, s_i)
        return y

    ys = [local(client) for client in clients]
    return MimeState(_move(x, clients, ys, eta_server), base.V(c, s))


def mime_lite(
    state: MimeState, clients: Sequence[Client], grad: Grad, base: Optimizer, eta: float, **options: Any
) -> MimeState:
    """`mime` with g = grad(y; batch), and its options."""
    return mime(state, clients, grad, base, eta, corrected=False, **options)


def server_only(
    state: MimeState,
    clients: Sequence[Client],
    grad: Grad,
    base: Optimizer,
    eta: float,
    *,
    apply: str = "frozen",
    prime: bool = False,
) -> MimeState:
    """x -= eta U(c, s), s = V(c, s) with c = h(x): no local steps."""
    x, s = state
    c = mean_gradient(x, clients, grad)
    return MimeState(x if prime else x - eta * base.step(apply)(c, s), base.V(c, s))


def centralized(
    state: MimeState,
    clients: Sequence[Client],
    grad: Grad,
    base: Optimizer,
    eta: float,
    *,
    apply: str = "frozen",
    prime: bool = False,
) -> MimeState:
    """The base optimizer on the mini-batches of all `clients` in sequence; the pooled data is usually one client.

    `prime=True`: s = V(h(x), s) only.
    """
    y, s = state
    if prime:
        return MimeState(y, base.V(mean_gradient(y, clients, grad), s))
    for client in clients:
        for batch in client.batches:
            g = Tree(grad(y, batch))
            y, s = y - eta * base.step(apply)(g, s), base.V(g, s)
    return MimeState(y, s)


# Momentum-based variance reduction.


class MVRState(NamedTuple):
    """Before round t: x = x^{t-1}, x_previous = x^{t-2}, m = m^{t-1}; `primed` counts gradient-only rounds."""

    x: Tree
    x_previous: Tree
    m: Tree
    primed: int


def mvr_init(x: Mapping[str, Any]) -> MVRState:
    """First state of the three MVR algorithms: x^{-1} = x^0 and m^0 = 0."""
    x = Tree(x)
    return MVRState(x, x, x.zeros(), 0)


def _prime_mvr(state: MVRState, clients: Sequence[Client], grad: Grad) -> MVRState:
    """m^0 is the plain average of the full gradients of the gradient-only rounds so far."""
    n = state.primed + 1
    m = (state.primed * state.m + mean_gradient(state.x, clients, grad)) / n
    return state._replace(m=m, primed=n)


def _mvr_momentum(m: Tree, a: float, h: Tree, h_previous: Tree) -> Tree:
    return a * h + (1 - a) * m + (1 - a) * (h - h_previous)


def mime_mvr(
    state: MVRState,
    clients: Sequence[Client],
    grad: Grad,
    eta: float,
    beta: float,
    *,
    eta_server: float = 1.0,
    anchor: str = "previous",
    gradient_clients: Sequence[Client] | None = None,
    prime: bool = False,
    corrected: bool = True,
) -> MVRState:
    """Local steps y -= eta d, d = a (grad(y) - grad(x0) + c) + (1-a) m + (1-a) (grad(y) - grad(x0)), a = 1 - beta.

    The anchor x0 is x^{t-2} ("previous") or x^{t-1} ("current"); c = h(x^{t-2}) for both. `prime=True`: a gradient-only
    round before the first real one, which enters the average m^0. `corrected=False` is MimeLiteMVR.
    """
    sources = clients if gradient_clients is None else gradient_clients
    if prime:
        return _prime_mvr(state, sources, grad)
    x, x_previous, m, primed = state
    a = 1 - beta
    x0 = {"previous": x_previous, "current": x}[anchor]
    h, c = mean_gradient(x, sources, grad), mean_gradient(x_previous, sources, grad)

    def direction(y: Tree, batch: Batch) -> Tree:
        g = Tree(grad(y, batch))
        moved = g - grad(x0, batch)
        return a * (moved + c if corrected else g) + (1 - a) * m + (1 - a) * moved

    ys = [_descend(x, client, eta, direction) for client in clients]
    return MVRState(_move(x, clients, ys, eta_server), x, _mvr_momentum(m, a, h, c), primed)


def mime_lite_mvr(
    state: MVRState, clients: Sequence[Client], grad: Grad, eta: float, beta: float, **options: Any
) -> MVRState:
    """`mime_mvr` with d = a grad(y) + (1-a) m + (1-a) (grad(y) - grad(x0)), and its options."""
    return mime_mvr(state, clients, grad, eta, beta, corrected=False, **options)


def server_only_mvr(
    state: MVRState, clients: Sequence[Client], grad: Grad, eta: float, beta: float, *, prime: bool = False
) -> MVRState:
    """STORM: m^t first, then x -= eta m^t."""
    if prime:
        return _prime_mvr(state, clients, grad)
    x, x_previous, m, primed = state
    m = _mvr_momentum(m, 1 - beta, mean_gradient(x, clients, grad), mean_gradient(x_previous, clients, grad))
    return MVRState(x - eta * m, x, m, primed)
