"""The reference itself: gradients by finite differences, numbers worked out by hand, identities between algorithms."""

import numpy as np
import pytest

from . import algorithms as alg
from . import optimizers as opt
from . import problems
from .algorithms import Client, in_batches
from .tree import Tree, flatten, weighted_sum

BASES = {
    "sgd": opt.sgd(),
    "momentum": opt.momentum(0.9),
    "adagrad": opt.adagrad(),
    "adam": opt.adam(eps=1e-3),
    "adam_corrected": opt.adam(eps=1e-3, bias_correction=True),
    "adam_floor": opt.adam(floor=0.1),
    "rmsprop": opt.rmsprop(eps=1e-3),
    "yogi": opt.yogi(0.9, 0.99, 1e-3, 1e-2),
    "sm3": opt.sm3(0.9, 1e-3),
    "sm3_nu": opt.sm3(0.9, 1e-3, lookahead="nu"),
    "adafactor": opt.adafactor(0.9),
}
every_base = pytest.mark.parametrize("base", BASES.values(), ids=list(BASES))
GRAD = problems.logistic().grad


def close(a, b, tol=1e-12):
    np.testing.assert_allclose(flatten(a), flatten(b), rtol=tol, atol=tol)


def random_tree(rng, **shapes):
    return Tree({name: rng.normal(size=shape) for name, shape in shapes.items()})


def cohort(rng, sizes=(7, 4, 10), batch=3, epochs=2):
    clients = []
    for i, n in enumerate(sizes):
        full = {"x": rng.normal(size=(n, 3)) + i, "y": rng.integers(0, 4, size=n)}
        clients.append(Client(in_batches(full, batch, epochs, rng), full, id=i))
    return clients


def whole_batch(clients, steps=1):
    return [Client([client.full] * steps, client.full, id=client.id) for client in clients]


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def x(rng):
    return random_tree(rng, w=(3, 4), b=(4,))


@pytest.fixture
def clients(rng):
    return cohort(rng)


# Problems.


def classification_batch(rng):
    return {"x": rng.normal(size=(6, 3)), "y": rng.integers(0, 4, size=6)}


@pytest.mark.parametrize(
    ("problem", "shapes"),
    [
        (problems.logistic(), {"w": (3, 4), "b": (4,)}),
        (problems.mlp(), {"w1": (3, 5), "b1": (5,), "w2": (5, 4), "b2": (4,)}),
        (problems.quadratic(), {"x": (3,)}),
    ],
    ids=["logistic", "mlp", "quadratic"],
)
def test_gradients_match_finite_differences(problem, shapes, rng):
    params = random_tree(rng, **shapes)
    batch = {"a": rng.normal(size=(6, 3)), "b": rng.normal(size=(6, 3))} if "x" in shapes else classification_batch(rng)
    grad = problem.grad(params, batch)
    for name, leaf in params.items():
        for index in np.ndindex(leaf.shape):
            bump = params.zeros()
            bump[name][index] = 1e-5
            slope = (problem.loss(params + bump, batch) - problem.loss(params - bump, batch)) / 2e-5
            assert slope == pytest.approx(grad[name][index], abs=1e-8)


def test_logistic_loss_at_zero_is_log_of_classes(rng):
    params = {"w": np.zeros((3, 4)), "b": np.zeros(4)}
    assert problems.logistic().loss(params, classification_batch(rng)) == pytest.approx(np.log(4))


def test_weighted_full_gradient_is_the_gradient_of_the_union(x, clients):
    union = {k: np.concatenate([client.full[k] for client in clients]) for k in ("x", "y")}
    close(alg.mean_gradient(x, clients, GRAD), GRAD(x, union))


# Optimizers.


def tracked(base, rng, shapes, times=3):
    s = base.init(random_tree(rng, **shapes))
    for _ in range(times):
        s = base.V(random_tree(rng, **shapes), s)
    return s


@every_base
def test_update_is_affine_in_the_gradient(base, rng):
    shapes = {"k": (2, 3, 4), "w": (3, 4), "b": (4,), "c": ()}
    s = tracked(base, rng, shapes)
    g1, g2 = random_tree(rng, **shapes), random_tree(rng, **shapes)
    close(base.U(0.3 * g1 + 0.7 * g2, s), 0.3 * base.U(g1, s) + 0.7 * base.U(g2, s))
    zero = base.U(g1.zeros(), s)
    close(base.U(2 * g1, s) - zero, 2 * (base.U(g1, s) - zero))


@every_base
def test_statistics_are_not_modified(base, rng):
    s = tracked(base, rng, {"w": (3, 4)})
    g = random_tree(rng, w=(3, 4))
    before = base.U(g, s), base.ahead(g, s)
    base.V(g, s)
    close(base.U(g, s), before[0], 0)
    close(base.ahead(g, s), before[1], 0)


@pytest.mark.parametrize("name", ["adagrad", "rmsprop", "sm3", "adafactor"])
def test_lookahead_is_tracking_then_frozen_without_momentum(name, rng):
    base = opt.sm3(0.0, 1e-3) if name == "sm3" else opt.adafactor(0.0) if name == "adafactor" else BASES[name]
    shapes = {"w": (3, 4), "b": (4,)}
    s, g = tracked(base, rng, shapes), random_tree(rng, **shapes)
    close(base.ahead(g, s), base.U(g, base.V(g, s)))


@pytest.mark.parametrize("base", [opt.sgd(), opt.momentum(0.9)], ids=["sgd", "momentum"])
def test_both_modes_agree_without_a_denominator(base, rng):
    s, g = tracked(base, rng, {"w": (3,)}), random_tree(rng, w=(3,))
    close(base.U(g, s), base.ahead(g, s), 0)


def scalar(value):
    return Tree({"x": [value]})


def test_momentum_by_hand():
    base = opt.momentum(0.9)
    s = base.V(scalar(2.0), base.init(scalar(0.0)))
    assert s["m"]["x"] == pytest.approx(0.2)
    assert base.U(scalar(1.0), s)["x"] == pytest.approx(0.28)


def test_adam_by_hand():
    base = opt.adam(0.9, 0.99, eps=1e-3, initial=0.25)
    s = base.init(scalar(0.0))
    assert base.U(scalar(2.0), s)["x"] == pytest.approx(0.2 / 0.501)
    assert base.ahead(scalar(2.0), s)["x"] == pytest.approx(0.2 / (1e-3 + np.sqrt(0.04 + 0.2475)))
    s = base.V(scalar(2.0), s)
    assert s["m"]["x"] == pytest.approx(0.2)
    assert s["v"]["x"] == pytest.approx(0.2875)


def test_adam_bias_correction_by_hand():
    base = opt.adam(0.9, 0.99, eps=1e-3, bias_correction=True)
    s = base.init(scalar(0.0))
    assert base.ahead(scalar(2.0), s)["x"] == pytest.approx(2 / 2.001)
    assert base.U(scalar(2.0), s)["x"] == pytest.approx(2 / 0.001)
    s = base.V(scalar(2.0), s)
    assert base.U(scalar(3.0), s)["x"] == pytest.approx((0.3 + 0.18) / (1 - 0.81) / 2.001)
    v = (0.09 + 0.99 * 0.04) / (1 - 0.99**2)
    assert base.ahead(scalar(3.0), s)["x"] == pytest.approx(0.48 / 0.19 / (1e-3 + np.sqrt(v)))


def test_floor_bounds_the_denominator():
    base = opt.rmsprop(eps=1e-7, floor=0.5)
    assert base.U(scalar(3.0), base.init(scalar(0.0)))["x"] == pytest.approx(6.0)


def test_adagrad_by_hand():
    base = opt.adagrad(initial=0.25, eps=0.5)
    s = base.init(scalar(0.0))
    assert base.U(scalar(2.0), s)["x"] == pytest.approx(2.0)
    assert base.ahead(scalar(2.0), s)["x"] == pytest.approx(2 / (0.5 + np.sqrt(4.25)))
    assert base.V(scalar(2.0), s)["v"]["x"] == pytest.approx(4.25)


@pytest.mark.parametrize(("initial", "expected"), [(1.0, 1.04), (9.0, 8.96), (4.0, 4.0)])
def test_yogi_by_hand(initial, expected):
    base = opt.yogi(0.9, 0.99, 1e-3, initial)
    assert base.V(scalar(2.0), base.init(scalar(0.0)))["v"]["x"] == pytest.approx(expected)


def test_sm3_by_hand():
    base, covering = opt.sm3(0.0, 0.0, lookahead="nu"), opt.sm3(0.0, 0.0)
    g, ones = Tree({"w": [[1, 2], [3, 4]], "b": [1, 2]}), Tree({"w": np.ones((2, 2)), "b": [1, 1]})
    s = base.V(g, base.init(g))
    np.testing.assert_array_equal(s["v"]["w"], [[4, 16], [9, 16]])
    np.testing.assert_array_equal(s["v"]["b"], [[1, 4]])
    np.testing.assert_allclose(base.U(ones, s)["w"], 1 / np.sqrt([[4, 4], [9, 16]]))
    np.testing.assert_allclose(base.ahead(ones, s)["w"], 1 / np.sqrt([[5, 5], [10, 17]]))
    s = base.V(ones, s)
    np.testing.assert_array_equal(s["v"]["w"], [[5, 17], [10, 17]])
    np.testing.assert_allclose(base.ahead(ones, s)["b"], 1 / np.sqrt([3, 6]))
    s = covering.V(g, covering.init(g))
    np.testing.assert_allclose(covering.ahead(ones, s)["w"], 1 / np.sqrt([[5, 5], [10, 17]]))
    s = covering.init(g)
    np.testing.assert_allclose(covering.ahead(g, s)["w"], g["w"] / np.sqrt([[4, 4], [9, 16]]))


def test_adafactor_by_hand():
    base = opt.adafactor(0.0)
    g, ones = Tree({"w": [[1, 2], [3, 4]], "b": [1, 2]}), Tree({"w": np.ones((2, 2)), "b": [1, 1]})
    s = base.V(g, base.init(g))
    row, col = s["v"]["w"]
    np.testing.assert_allclose(row, [2.5, 12.5])
    np.testing.assert_allclose(col, [5, 10])
    np.testing.assert_allclose(base.U(ones, s)["w"], np.sqrt(7.5 / np.array([[12.5, 25], [62.5, 125]])))
    np.testing.assert_allclose(base.U(ones, s)["b"], [1, 0.5])
    keep = 1 - 2**-0.8
    row, col = base.V(ones, s)["v"]["w"]
    np.testing.assert_allclose(row, keep * np.array([2.5, 12.5]) + 1 - keep)
    np.testing.assert_allclose(base.ahead(g, base.init(g))["b"], [1, 1])


def test_adafactor_with_a_floor_can_start_unprimed():
    base = opt.adafactor(0.0, floor=0.5)
    g = Tree({"w": np.ones((2, 2))})
    np.testing.assert_allclose(base.U(g, base.init(g))["w"], 2.0)


# Algorithms by hand: f_1 = (x - 0)^2 / 2 and f_2 = 3 (x - 4)^2 / 2 from x = 1, eta = 0.1, one example per client.

QUADRATIC = problems.quadratic().grad
ONE = scalar(1.0)


def hand_client(i, steps):
    data = {"a": np.array([[1.0, 3.0][i]])[None], "b": np.array([[0.0, 4.0][i]])[None]}
    return Client([data] * steps, data, id=i)


def hand_cohort(steps):
    return [hand_client(0, steps), hand_client(1, steps)]


def test_mime_by_hand():
    state = alg.mime(alg.mime_init(ONE, opt.sgd()), hand_cohort(2), QUADRATIC, opt.sgd(), 0.1)
    assert state.x["x"] == pytest.approx((1.76 + 1.68) / 2)
    state = alg.mime(alg.mime_init(ONE, opt.sgd()), hand_cohort(2), QUADRATIC, opt.sgd(), 0.1, eta_server=0.5)
    assert state.x["x"] == pytest.approx(1.36)


def test_local_statistics_by_hand():
    base = opt.momentum(0.5)
    state = alg.mime_lite(alg.mime_init(ONE, base), [hand_client(0, 2)], QUADRATIC, base, 0.1, statistics="local")
    # m: 0.5, then 0.5 * 0.95 + 0.5 * 0.5 = 0.725; the server's own m is 0.5 * 1.
    assert state.x["x"] == pytest.approx(1 - 0.05 - 0.0725)
    assert state.s["m"]["x"] == pytest.approx(0.5)


def test_split_cohort_by_hand():
    state = alg.mime(
        alg.mime_init(ONE, opt.momentum(0.5)),
        [hand_client(0, 2)],
        QUADRATIC,
        opt.momentum(0.5),
        0.1,
        gradient_clients=[hand_client(1, 0)],
    )
    # c = -9: y = 1.45, then g = 0.45 - 9.
    assert state.x["x"] == pytest.approx(1.45 + 0.05 * 8.55)
    assert state.s["m"]["x"] == pytest.approx(-4.5)


def test_scaffold_by_hand():
    state = alg.scaffold(alg.scaffold_init(ONE), hand_cohort(2), QUADRATIC, 0.1, population=4)
    assert state.x["x"] == pytest.approx(1.67)
    assert state.c_i[0]["x"] == pytest.approx(0.95)
    assert state.c_i[1]["x"] == pytest.approx(-7.65)
    assert state.c["x"] == pytest.approx(-1.675)
    state = alg.scaffold(state, [hand_client(0, 2)], QUADRATIC, 0.1, population=4)
    assert state.x["x"] == pytest.approx(1.85145)
    assert state.c_i[0]["x"] == pytest.approx(1.71775)
    assert state.c_i[1]["x"] == pytest.approx(-7.65)
    assert state.c["x"] == pytest.approx(-1.4830625)


def test_feddyn_by_hand():
    state = alg.feddyn(alg.feddyn_init(ONE), hand_cohort(1), QUADRATIC, 0.1, 0.5, population=4)
    assert [state.h_i[i]["x"][0] for i in (0, 1)] == pytest.approx([0.05, -0.45])
    assert state.h["x"] == pytest.approx(-0.1)
    assert state.x["x"] == pytest.approx(1.6)
    state = alg.feddyn(state, [hand_client(0, 2)], QUADRATIC, 0.1, 0.5, population=4)
    assert state.h_i[0]["x"] == pytest.approx(0.193375)
    assert state.h["x"] == pytest.approx(-0.06415625)
    assert state.x["x"] == pytest.approx(1.4415625)


def test_fedcm_by_hand():
    state = alg.fedcm(alg.momentum_init(ONE), hand_cohort(1), QUADRATIC, 0.1, 0.5)
    assert state.x["x"] == pytest.approx((0.95 + 1.45) / 2)
    assert state.m["x"] == pytest.approx(-2)
    state = alg.fedcm(state, [hand_client(0, 1)], QUADRATIC, 0.1, 0.5)
    assert state.x["x"] == pytest.approx(1.2 + 0.1 * 0.4)


def test_ghbm_by_hand():
    state = alg.ghbm(alg.ghbm_init(ONE), hand_cohort(1), QUADRATIC, 0.1, 0.5, 1)
    assert state.x["x"] == pytest.approx(1.4)
    state = alg.ghbm(state, [hand_client(0, 2)], QUADRATIC, 0.1, 0.5, 1)
    # two steps that both add 0.25 * 0.4: 1.4 -> 1.36 -> 1.324
    assert state.x["x"] == pytest.approx(1.324)
    far = alg.ghbm(state, [hand_client(0, 1)], QUADRATIC, 0.1, 0.5, 2)
    assert far.x["x"] == pytest.approx(0.9 * 1.324 + 0.25 * 0.324)
    before_the_first = alg.ghbm(state, [hand_client(0, 1)], QUADRATIC, 0.1, 0.5, 9)
    assert before_the_first.x["x"] == pytest.approx(0.9 * 1.324 + 0.5 / 9 * 0.324)


def test_fedacg_by_hand():
    state = alg.fedacg(alg.momentum_init(ONE), hand_cohort(1), QUADRATIC, 0.1, 0.5, 1.0)
    assert (state.x["x"], state.m["x"]) == (pytest.approx(1.4), pytest.approx(0.4))
    state = alg.fedacg(state, [hand_client(0, 2)], QUADRATIC, 0.1, 0.5, 1.0)
    # from 1.6: 1.44, then 1.44 - 0.1 * (1.44 - 0.16)
    assert (state.x["x"], state.m["x"]) == (pytest.approx(1.312), pytest.approx(0.2 - 0.288))


def test_fednova_by_hand():
    clients = [hand_client(0, 2), hand_client(1, 1)]
    state = alg.fednova(alg.fedavg_init(ONE), clients, QUADRATIC, 0.1, 0.0)
    assert state.x["x"] == pytest.approx(1 - 1.5 * 0.1 * (0.95 - 9) / 2)


def test_fednova_weighs_gradients_as_the_paper_does():
    """The closed forms of |a|_1, for heavy-ball momentum (1 - rho) times ours, and for the proximal term."""
    steps, eta = 5, 0.1
    for mu, rho in ((0.0, 0.6), (2.0, 0.0)):
        # one client moves the server by tau_eff eta d, which is its own movement, whatever |a|_1 is ...
        one, other = hand_client(0, steps), hand_client(1, 1)
        alone = alg.fednova(alg.fedavg_init(ONE), [one], QUADRATIC, eta, mu, rho).x["x"][0] - 1
        single = alg.fednova(alg.fedavg_init(ONE), [other], QUADRATIC, eta, mu, rho).x["x"][0] - 1
        both = alg.fednova(alg.fedavg_init(ONE), [one, other], QUADRATIC, eta, mu, rho).x["x"][0] - 1
        momentum = steps - rho * (1 - rho**steps) / (1 - rho)
        norm, short = (momentum, 1 - rho) if rho else ((1 - (1 - eta * mu) ** steps) / (eta * mu), 1.0)
        # ... and two of them by (|a_1| + |a_2|) / 2 times the mean of their directions
        assert both == pytest.approx((norm + short) / 2 * (alone / norm + single / short) / 2)


def test_fedexp_by_hand():
    start = alg.fedavg_init(ONE)
    state = alg.fedexp(start, hand_cohort(1), QUADRATIC, 0.1, 0.04)
    assert state.x["x"] == pytest.approx(1 + 0.41 / (2 * (0.16 + 0.04)) * 0.4)
    assert alg.fedexp(start, hand_cohort(1), QUADRATIC, 0.1, 1.0).x["x"] == pytest.approx(1.4)
    assert alg.fedexp(start, hand_cohort(1), QUADRATIC, 0.1, 0.04, 1.01).x["x"] == pytest.approx(1 + 1.01 * 0.4)


def test_fedvarp_by_hand():
    state = alg.fedvarp(alg.fedvarp_init(ONE), hand_cohort(1), QUADRATIC, 0.1, population=4)
    assert state.x["x"] == pytest.approx(1.4)
    state = alg.fedvarp(state, [hand_client(0, 1)], QUADRATIC, 0.1, population=4)
    assert state.x["x"] == pytest.approx(1.4 - (0.14 - 0.1) - (0.1 - 0.9) / 4)
    assert [state.y_i[i]["x"][0] for i in (0, 1)] == pytest.approx([0.14, -0.9])


def test_local_optimizer_by_hand():
    state = alg.local_optimizer(alg.fedavg_init(ONE), [hand_client(0, 2)], QUADRATIC, 0.1, opt.momentum(0.5), decay=1.0)
    assert state.x["x"] == pytest.approx(0.9 * 0.85 - 0.1 * 0.675)


def test_nesterov_by_hand():
    base = opt.nesterov(0.5)
    s = base.V(ONE, base.init(ONE))
    assert base.ahead(ONE, base.init(ONE))["x"] == pytest.approx(1.5)
    assert s["m"]["x"] == pytest.approx(1)
    assert base.ahead(ONE, s)["x"] == pytest.approx(1.75)


@pytest.mark.parametrize(
    ("algorithm", "options", "expected"),
    [
        (alg.mime_mvr, {"anchor": "previous"}, 1.93),
        (alg.mime_mvr, {"anchor": "current"}, 2.05),
        (alg.mime_lite_mvr, {"anchor": "previous"}, 1.93),
        (alg.mime_lite_mvr, {"anchor": "current"}, 1.99),
        (alg.server_only_mvr, {}, 1.93),
    ],
)
def test_mvr_by_hand(algorithm, options, expected):
    state = algorithm(alg.mvr_init(ONE), hand_cohort(0), QUADRATIC, 0.1, 0.5, prime=True, **options)
    assert state.m["x"] == pytest.approx(-4)
    state = state._replace(x=scalar(1.4), x_previous=ONE)
    state = algorithm(state, [hand_client(1, 1)], QUADRATIC, 0.1, 0.5, **options)
    assert state.x["x"] == pytest.approx(expected)
    assert state.x_previous["x"] == pytest.approx(1.4)
    assert state.m["x"] == pytest.approx(-5.3)


def test_mvr_priming_gives_rounds_equal_weight():
    state = alg.mvr_init(ONE)
    for group in ([hand_client(0, 0)], [hand_client(1, 0)], hand_cohort(0)):
        state = alg.mime_mvr(state, group, QUADRATIC, 0.1, 0.5, prime=True)
    assert state.m["x"] == pytest.approx((1 - 9 - 4) / 3)
    close(state.x, ONE, 0)
    close(state.x_previous, ONE, 0)


def test_partial_batch_and_given_weights():
    data = {"a": np.ones((3, 1)), "b": np.array([[0.0], [2.0], [7.0]])}
    batches = in_batches(data, 2)
    assert [len(batch["a"]) for batch in batches] == [2, 1]
    clients = [Client(batches, data, weight=3.0, id=0), Client([], data, weight=1.0, id=1)]
    state = alg.fedavg(alg.fedavg_init(scalar(0.0)), clients, QUADRATIC, 0.1)
    # y = 0.1, then 0.1 + 0.69; the second client stays at 0.
    assert state.x["x"] == pytest.approx(0.75 * 0.79)


# Identities.


def test_mime_lite_with_sgd_is_fedavg(x, clients):
    lite = alg.mime_lite(alg.mime_init(x, opt.sgd()), clients, GRAD, opt.sgd(), 0.1, eta_server=0.7)
    close(lite.x, alg.fedavg(alg.fedavg_init(x), clients, GRAD, 0.1, eta_server=0.7).x)


def test_fedprox_without_penalty_is_fedavg(x, clients):
    a = alg.fedprox(alg.fedavg_init(x), clients, GRAD, 0.1, 0.0)
    close(a.x, alg.fedavg(alg.fedavg_init(x), clients, GRAD, 0.1).x)
    assert np.abs(flatten(alg.fedprox(alg.fedavg_init(x), clients, GRAD, 0.1, 1.0).x - a.x)).max() > 1e-3


def test_first_scaffold_round_is_fedavg(x, clients):
    for server in (opt.sgd(), opt.adam(eps=1e-3)):
        scaffold = alg.scaffold(alg.scaffold_init(x, server), clients, GRAD, 0.1, 10, server=server)
        close(scaffold.x, alg.fedavg(alg.fedavg_init(x, server), clients, GRAD, 0.1, server=server).x)


def test_server_adam_is_the_full_optimizer_on_the_pseudo_gradient(x, clients):
    server = opt.adam(eps=1e-3)
    plain = alg.fedavg(alg.fedavg_init(x), clients, GRAD, 0.1).x
    g = x - plain
    state = alg.fedavg(alg.fedavg_init(x, server), clients, GRAD, 0.1, server=server, eta_server=0.3)
    expected = x - 0.3 * g.map(lambda g: 0.1 * g / (1e-3 + np.sqrt(0.01 * g**2)))
    close(state.x, expected)
    close(state.s["m"], 0.1 * g)


@every_base
@pytest.mark.parametrize("apply", ["frozen", "lookahead"])
def test_one_full_batch_step_is_server_only(base, apply, x, clients):
    state = alg.mime(alg.mime_init(x, base), clients, GRAD, base, 0.1, prime=True)
    close(state.x, x, 0)
    expected = alg.server_only(state, clients, GRAD, base, 0.1, apply=apply)
    close(alg.mime(state, whole_batch(clients), GRAD, base, 0.1, apply=apply).x, expected.x)
    if apply == "frozen" or base in (BASES["sgd"], BASES["momentum"]):  # U commutes with the mean only when linear
        close(alg.mime_lite(state, whole_batch(clients), GRAD, base, 0.1, apply=apply).x, expected.x)


@every_base
def test_one_client_with_full_batches_makes_mime_and_mime_lite_equal(base, x, clients):
    one = whole_batch(clients[:1], steps=4)
    state = alg.mime(alg.mime_init(x, base), one, GRAD, base, 0.1, prime=True)
    close(alg.mime(state, one, GRAD, base, 0.1).x, alg.mime_lite(state, one, GRAD, base, 0.1).x)


@every_base
def test_centralized_with_one_full_batch_is_server_only(base, x, clients):
    one = whole_batch(clients[:1])
    for apply in ("frozen", "lookahead"):
        state = alg.centralized(alg.mime_init(x, base), one, GRAD, base, 0.1, prime=True)
        a = alg.centralized(state, one, GRAD, base, 0.1, apply=apply)
        b = alg.server_only(state, one, GRAD, base, 0.1, apply=apply)
        close(a.x, b.x)


def test_adam_without_first_moment_is_rmsprop(x, clients):
    a, b = opt.adam(beta1=0.0, eps=1e-3, initial=0.1), opt.rmsprop(eps=1e-3, initial=0.1)
    one, two = alg.mime_init(x, a), alg.mime_init(x, b)
    for apply in ("frozen", "lookahead"):
        one = alg.mime(one, clients, GRAD, a, 0.1, apply=apply)
        two = alg.mime(two, clients, GRAD, b, 0.1, apply=apply)
        close(one.x, two.x)


def test_local_statistics_matter_only_with_statistics(x, clients):
    for algorithm in (alg.mime, alg.mime_lite):
        for base, same in ((opt.sgd(), True), (opt.momentum(0.9), False)):
            start = alg.mime_init(x, base)
            fixed = algorithm(start, clients, GRAD, base, 0.1)
            local = algorithm(start, clients, GRAD, base, 0.1, statistics="local")
            assert np.allclose(flatten(fixed.x), flatten(local.x)) == same
            if not same:
                close(fixed.s["m"], local.s["m"], 0)


def test_order_of_clients_does_not_matter(x, clients):
    base = opt.adam(initial=0.1)
    start = alg.mime_init(x, base)
    close(alg.mime(start, clients, GRAD, base, 0.1).x, alg.mime(start, clients[::-1], GRAD, base, 0.1).x)


def test_mvr_with_full_weight_on_the_gradient_is_mime_with_sgd(x, clients):
    for mvr, plain in ((alg.mime_mvr, alg.mime), (alg.mime_lite_mvr, alg.mime_lite)):
        close(
            mvr(alg.mvr_init(x), clients, GRAD, 0.1, 0.0).x,
            plain(alg.mime_init(x, opt.sgd()), clients, GRAD, opt.sgd(), 0.1).x,
        )


@pytest.mark.parametrize("algorithm", [alg.mime_mvr, alg.mime_lite_mvr, alg.server_only_mvr])
def test_mvr_momentum_is_exact_on_identical_clients(algorithm, x, clients):
    twins = [clients[0], clients[0]]
    state = algorithm(alg.mvr_init(x), twins, GRAD, 0.1, 0.9, prime=True)
    for _ in range(3):
        before = state.x
        state = algorithm(state, twins, GRAD, 0.1, 0.9)
        close(state.m, GRAD(before, clients[0].full))


@every_base
def test_round_is_a_perturbed_central_step(base, x, rng):
    """x+ = x - K eta U(c + e, s), e the mean over clients and steps of grad(y; batch) - grad(x; batch)."""
    clients, eta, steps = cohort(rng, sizes=(6, 6, 6), batch=3, epochs=2), 0.05, 4
    state = alg.mime(alg.mime_init(x, base), clients, GRAD, base, eta, prime=True)
    c, drifts = alg.mean_gradient(x, clients, GRAD), []
    for client in clients:
        y = x
        for batch in client.batches:
            drifts.append(Tree(GRAD(y, batch)) - GRAD(x, batch))
            y = y - eta * base.U(drifts[-1] + c, state.s)
    e = weighted_sum([1 / len(drifts)] * len(drifts), drifts)
    close(alg.mime(state, clients, GRAD, base, eta).x, x - steps * eta * base.U(c + e, state.s))


def test_stateful_algorithms_need_distinct_ids(x, clients):
    with pytest.raises(ValueError, match="distinct client ids"):
        alg.scaffold(alg.scaffold_init(x), [clients[0], clients[0]], GRAD, 0.1, 10)
