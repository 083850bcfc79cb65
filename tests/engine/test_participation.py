"""Cohorts of unreliable clients: drop-out, over-selection, rounds that too few came to."""

import jax
import numpy as np
import pytest

import fedmime as fm
from fedmime.engine.participation import Participation

SIZES = np.array([5, 0, 3, 8, 1, 9, 2, 4, 0, 6] * 20)


@pytest.mark.parametrize("sampler", ["uniform", "by_size", "with_replacement", "diurnal"])
def test_draws_are_functions_of_seed_and_round_and_leave_out_empty_clients(sampler: str) -> None:
    who = Participation(sampler, drop_out=0.2, over_selection=1.3)
    first, again, other = (who.draw(SIZES, 10, 1, t).in_time for t in (4, 4, 5))
    assert first.tolist() == again.tolist() != other.tolist()
    assert (SIZES[first] > 0).all()


def test_poisson_cohorts_leave_out_empty_clients_and_lose_nobody_but_by_drop_out() -> None:
    whole, lossy = Participation("poisson"), Participation("poisson", drop_out=0.2)
    for t in range(30):
        asked, drawn = whole.draw(SIZES, 40, 1, t).in_time, lossy.draw(SIZES, 40, 1, t)
        assert (SIZES[asked] > 0).all()
        assert sorted(asked) == sorted([*drawn.in_time, *drawn.dropped])
        assert not len(drawn.late)
    assert np.mean([len(whole.draw(SIZES, 40, 1, t).in_time) > 40 for t in range(100)]) > 0.3
    again, other = lossy.draw(SIZES, 40, 1, 29), lossy.draw(SIZES, 40, 1, 30)
    assert drawn.in_time.tolist() == again.in_time.tolist() != other.in_time.tolist()


def test_runs_take_poisson_cohorts() -> None:
    run = _run(Participation("poisson", minimum=0.0))
    assert len(set(run.history["clients"])) > 1


def test_over_selection_meets_the_target_at_ten_percent_drop_out() -> None:
    who = Participation(drop_out=0.1, over_selection=1.3)
    reached = [len(who.draw(SIZES, 50, 0, t).in_time) for t in range(200)]
    assert np.mean(np.array(reached) == 50) > 0.95


def _run(participation: Participation, algorithm=None) -> fm.Run:
    return fm.simulate(
        algorithm or fm.algorithms.fedavg(0.1),
        fm.models.logistic((20,), 5),
        fm.data.synthetic(clients=12, seed=0),
        rounds=4,
        cohort_size=4,
        participation=participation,
    )


def test_a_round_to_which_nobody_comes_leaves_the_state() -> None:
    run = _run(Participation(drop_out=1.0))
    assert run.history["abandoned"].all()
    start = fm.models.logistic((20,), 5).init(jax.random.fold_in(jax.random.key(0), 0))
    jax.tree.map(np.testing.assert_array_equal, run.params, start)


def test_a_run_goes_on_with_those_that_report() -> None:
    run = _run(Participation(drop_out=0.3, over_selection=1.3))
    assert not run.history["abandoned"].any()
    assert set(run.history["clients"]) <= {2.0, 3.0, 4.0}


def test_bad_numbers_are_refused() -> None:
    for field, value in (("drop_out", 1.5), ("over_selection", 0.5), ("minimum", -1), ("sampler", "best")):
        with pytest.raises(fm.ConfigError, match=f"{field}.*{value}"):
            Participation(**{field: value})
    with pytest.raises(fm.ConfigError, match=r"over_selection must be 1 with sampler='poisson', got 1\.3"):
        Participation("poisson", over_selection=1.3)
    with pytest.raises(fm.ConfigError, match="with_replacement"):
        _run(Participation("with_replacement"), fm.algorithms.scaffold(0.1))
