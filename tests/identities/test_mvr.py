"""Momentum-based variance reduction: what it reduces to, and the gradient that its m tracks."""

import fedmime as fm
from identities.setting import (
    Clients,
    Params,
    Random,
    apart,
    clients,
    distance,
    grad,
    identical,
    identity,
    model,
    play,
    rate,
    ready,
    weights,
)
from reference.tree import Tree, weighted_sum

a, o = fm.algorithms, fm.optimizers


def _anywhere(algorithm, rng: Random, x: Params) -> fm.State:
    """A state at x whose past and whose m are arbitrary."""
    return ready(algorithm, x, x_old=fm.Vector(model(rng)), m=fm.Vector(model(rng)))


def _corrected_at(anchor: Params, x: Params, drawn: Clients, share: list[float], eta: float) -> Tree:
    """Mime with SGD whose control variates are taken at `anchor`, in NumPy."""
    members = range(len(share))
    c = weighted_sum(share, [Tree(grad(anchor, drawn.full(i))) for i in members])
    ys = []
    for i in members:
        y = Tree(x)
        for batch in drawn.steps(i):
            y = y - eta * (Tree(grad(y, batch)) - Tree(grad(anchor, batch)) + c)
        ys.append(y)
    return weighted_sum(share, ys)


@identity
def test_mvr_without_memory_is_mime_with_c_at_the_anchor(rng: Random) -> float:
    """beta = 0, x° = x^{t-2}: nothing is left of m, and c is the mean gradient at x°."""
    eta, x, drawn, w = rate(rng), model(rng), clients(rng), weights(rng)
    algorithm = a.mime_mvr(eta, beta=0.0)
    state = _anywhere(algorithm, rng, x)
    end = play(algorithm, state, drawn.cohort(weights=w))
    return distance(fm.params(end), _corrected_at(state.server.x_old.tree, x, drawn, list(w / w.sum()), eta))


@identity
def test_mvr_without_memory_is_mime_before_x_has_moved(rng: Random) -> float:
    """In the first round x^{t-1} = x^{t-2}, so both anchors give Mime with SGD itself."""
    eta, x, cohort = rate(rng), model(rng), clients(rng).cohort(weights=weights(rng))
    mime = play(a.mime(o.sgd(), eta), x, cohort)
    both = [a.mime_mvr(eta, 0.0, anchor=anchor) for anchor in ("previous", "current")]
    return max(apart(play(mvr, ready(mvr, x), cohort), mime) for mvr in both)


@identity
def test_mime_lite_mvr_without_memory_is_fedavg(rng: Random) -> float:
    eta, x, rounds = rate(rng), model(rng), [clients(rng).cohort() for _ in range(2)]
    algorithm = a.mime_lite_mvr(eta, beta=0.0)
    ends = [play(algorithm, _anywhere(algorithm, rng, x), *rounds), play(a.mime_lite(o.sgd(), eta), x, *rounds)]
    fedavg = play(a.fedavg(eta), x, *rounds)
    return max(apart(end, fedavg) for end in ends)


@identity
def test_server_only_mvr_without_memory_is_server_only(rng: Random) -> float:
    eta, x, rounds = rate(rng), model(rng), [clients(rng).cohort() for _ in range(2)]
    algorithm = a.server_only_mvr(eta, beta=0.0)
    end = play(algorithm, _anywhere(algorithm, rng, x), *rounds)
    return apart(end, play(a.server_only(o.sgd(), eta), x, *rounds))


@identity
def test_on_identical_clients_m_is_the_exact_gradient(rng: Random) -> float:
    """m^t = grad f(x^{t-1}) in every round, for all variants and any beta."""
    eta, beta, x, drawn = rate(rng), float(rng.uniform(0, 0.99)), model(rng), identical(rng)
    errors = []
    for factory in (a.mime_mvr, a.mime_lite_mvr, a.server_only_mvr):
        algorithm = factory(eta, beta)
        state = algorithm.init(x)
        for _ in range(4):
            before = fm.params(state)
            state = play(algorithm, state, drawn.cohort())
            errors.append(distance(state.server.m, grad(Tree(before), drawn.full(0))))
        assert distance(fm.params(state), x) > 1e-4
    return max(errors)
