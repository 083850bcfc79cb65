"""The rates evaluated by hand, their limits, and MVR's numbers."""

import math

import pytest

import fedmime as fm
from fedmime.theory import Constants, favoured, mvr_parameters, rounds_table, suggested_steps

C = Constants(G2=4.0, sigma2=9.0, L=10.0, delta=0.5, population=8000)


def _table(constants=C, eps=0.25, S=8, K=20, **options):
    return {row.method: row for row in rounds_table(constants, eps, S, K, **options)}


def test_rows_by_hand():
    table, root = _table(), math.sqrt(8)
    assert table["SCAFFOLD"].rounds == pytest.approx(100 * 40)
    assert table["Server-only SGD"].rounds == pytest.approx(10 * 4 / (8 / 16) + 40)
    assert table["Mime SGD"].terms == table["Server-only SGD"].terms
    mixed = 4 + 9 / 20
    assert table["MimeLite SGD = FedAvg"].rounds == pytest.approx(20 * mixed + 80 * math.sqrt(mixed) + 40)
    assert table["Server-only momentum"].rounds == pytest.approx(10 * (10 * 4 / (8 / 16) + 40))
    assert table["Mime momentum"].terms == table["Server-only momentum"].terms
    assert table["MimeLite momentum"].rounds == pytest.approx(10 * table["MimeLite SGD = FedAvg"].rounds)
    assert _table(beta=0.0)["Mime momentum"].rounds == pytest.approx(table["Mime SGD"].rounds)
    assert table["Server-only MVR"].rounds == pytest.approx(10 * 2 / (root / 8) + 40)
    assert table["MimeMVR"].rounds == pytest.approx(0.5 * 2 / (root / 8) + 4 / 2 + 2)
    assert table["MimeLiteMVR"].rounds == pytest.approx(0.5 * 5 * 8 + 13 * 4 + 2)
    assert table["any server-only method"].rounds == pytest.approx(table["Server-only MVR"].rounds + 2)
    assert table["MimeMVR"].dominating == "δGF/(√S·ε^1.5)"
    assert favoured(list(table.values())).method == "MimeMVR"


def test_adam_stalls_where_the_noise_of_cohorts_is_above_eps():
    small, large = _table(), _table(S=17)
    assert math.isinf(small["Mime Adam"].rounds)
    assert not small["Mime Adam"].holds
    assert large["Mime Adam"].rounds == pytest.approx(10 / (0.25 - 4 / 17))
    assert math.isinf(large["MimeLite Adam"].rounds)  # whose noise holds that of mini-batches
    assert _table(S=40)["MimeLite Adam"].rounds == pytest.approx(math.sqrt(40) * 10 / (0.25 - 4.45 / 40))


@pytest.mark.parametrize("S", [9, 10, 11])
def test_adam_rows_name_the_noise_that_they_are_judged_by(S):
    table = {row.method: row for row in rounds_table(Constants(2.3, 0.7, 5.0, 0.4), 0.232, S, 20)}
    for method, symbol, noise, factor in (
        ("Server-only Adam", "G²", 2.3, 1.0),
        ("Mime Adam", "G²", 2.3, 1.0),
        ("MimeLite Adam", "G̃²", 2.3 + 0.7 / 20, math.sqrt(S)),
    ):
        row = table[method]
        assert row.condition == f"S > {symbol}/ε"
        assert row.dominating.endswith(f"LF/(ε−{symbol}/S)")
        assert row.holds == (noise / S < 0.232) == math.isfinite(row.rounds)
        assert not row.holds or row.rounds == pytest.approx(factor * 5 / (0.232 - noise / S))


def test_rows_without_a_condition_hold():
    for row in _table(Constants(0.01, 100.0, 5.0, 0.4), K=1).values():
        assert row.holds or row.condition
    assert not _table(Constants(0.01, 100.0, 5.0, 0.4), K=1)["MimeLite SGD = FedAvg"].condition  # by G̃², for any K


def test_the_suggested_steps_are_enough():
    for L in (0.3, 0.7, 1.1, 2.048, 17.3):
        for delta in (0.1, 0.3, 0.7, L / 3, L / 7, L, 2 * L):
            alike = Constants(1.0, 1.0, L, delta)
            assert _table(alike, K=suggested_steps(alike))["MimeMVR"].holds, (L, delta)


def test_too_few_local_steps_cost_rounds():
    few, enough = _table(K=5)["MimeMVR"], _table(K=20)["MimeMVR"]
    assert not few.holds
    assert few.terms["LF/(Kε)"] == pytest.approx(8)
    assert enough.holds
    assert "LF/(Kε)" not in enough.terms


def test_the_start_scales_all_but_the_noise_that_needs_no_progress():
    once, twice = _table(), _table(F=2.0)
    assert twice["Server-only MVR"].rounds == pytest.approx(2 * once["Server-only MVR"].rounds)
    assert twice["MimeMVR"].terms["G²/(Sε)"] == once["MimeMVR"].terms["G²/(Sε)"]


def test_scaffold_needs_clients_that_come_again():
    row = _table(Constants(1.0, 1.0, 1.0, 1.0))["SCAFFOLD"]
    assert math.isinf(row.rounds)
    assert not row.holds
    assert _table(Constants(1.0, 1.0, 1.0, 1.0), N=8)["SCAFFOLD"].rounds == pytest.approx(4)


def test_mime_beats_every_server_only_method_as_clients_grow_alike():
    factors = []
    for delta in (10.0, 1.0, 0.1):
        table = _table(Constants(4.0, 9.0, 10.0, delta), eps=1e-3, K=100)
        factors.append(table["any server-only method"].rounds / table["MimeMVR"].rounds)
    assert factors == sorted(factors)
    assert factors[0] <= 1
    assert factors[-1] > 50


def test_suggested_steps():
    assert suggested_steps(C) == 20
    assert suggested_steps(Constants(1.0, 1.0, 1.0, 3.0)) == 1
    assert suggested_steps(Constants(1.0, 1.0, 1.0, 0.0)) == 1_000_000


def test_mvr_parameters_by_hand():
    eta, a = mvr_parameters(C, S=8, K=20, T=1000, F=2.0)
    third = (8 * 2 / (6936 * 20**3 * 1000 * 0.25 * 4)) ** (1 / 3)
    assert eta == pytest.approx(min(0.1, 1 / 8640, third)) == pytest.approx(1 / 8640)
    assert a == pytest.approx(max(1536 * (eta * 0.5 * 20) ** 2, 1e-3))
    long, slow = mvr_parameters(C, 8, 20, 10**7, 2.0)
    assert long == pytest.approx((8 * 2 / (6936 * 20**3 * 1e7 * 0.25 * 4)) ** (1 / 3))
    assert slow == pytest.approx(1536 * (long * 10) ** 2)
    assert mvr_parameters(C, 8, 20, 10**7, 2.0, lite=True)[0] == pytest.approx(long * (4 / 8 / 13) ** (1 / 3))
    alike = Constants(1.0, 1.0, 2.0, 0.0)
    assert mvr_parameters(alike, 8, 20, 100, 1.0) == (0.5, 0.01)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: rounds_table(C, 0.0, 8, 20), "rounds_table: eps must be positive, got 0.0"),
        (lambda: rounds_table(C, 0.1, 8, 20, beta=1.0), r"rounds_table: beta must lie in \[0, 1\), got 1.0"),
        (lambda: rounds_table(C, 0.1, 0, 20), "rounds_table: S must be a whole number of at least 1, got 0"),
        (lambda: rounds_table(3, 0.1, 8, 20), "rounds_table: constants must come from fm.theory.constants, got 3"),  # pyright: ignore
        (lambda: mvr_parameters(C, 8, 20, 0, 1.0), "mvr_parameters: T must be a whole number of at least 1, got 0"),
        (lambda: mvr_parameters(C, 8, 20, 5, -1.0), "mvr_parameters: F must be positive, got -1.0"),
        (lambda: suggested_steps(None), "suggested_steps: constants must come from fm.theory.constants"),  # pyright: ignore
    ],
)
def test_refuses_what_makes_no_sense(call, words):
    with pytest.raises(fm.ConfigError, match=words):
        call()
