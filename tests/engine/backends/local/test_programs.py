"""Runs of every kind of algorithm: one program for all rounds, and the same numbers every time."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedmime as fm
from compiled import programs
from engine.setting import KINDS, PROBLEM, a, columns, falling, model, o, population, roomy, same

ROUNDS = 6
CLIENTS = population([13 + i % 4 for i in range(24)])  # of sizes that fill the same tables


def _run(kind: str, seed: int = 3) -> tuple[fm.Run, list[int]]:
    """A run, and the programs built by the end of each of its rounds."""
    built = []
    run = fm.simulate(
        KINDS[kind],
        PROBLEM,
        CLIENTS,
        ROUNDS,
        4,
        4,
        seed=seed,
        drift=True,
        evaluate_every=1,
        on_round=lambda *_: built.append(programs()),
    )
    return run, built


_first = functools.cache(_run)


@pytest.mark.parametrize("kind", KINDS)
def test_later_rounds_build_no_program(kind: str) -> None:
    """Other clients, sizes and numbers in every round; only the first round of a phase is compiled."""
    run, built = _run(kind)  # not an earlier one: other tests may have built programs since, or let go of them
    assert KINDS[kind].pooled or len(set(run.history["examples"])) > 1
    first = KINDS[kind].gradient_rounds + 1  # by then all programs are built, those of evaluation included
    assert len(set(built[first:])) == 1
    again = _run(kind, seed=4)[1]
    assert len(set(again)) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_same_seed_gives_the_same_run(kind: str) -> None:
    one, other = _first(kind)[0], _run(kind)[0]
    assert same(one.state.server, other.state.server)
    assert same(one.history, other.history)


def test_other_seeds_give_other_runs() -> None:
    assert not same(_first("fedavg")[0].params, _run("fedavg", seed=4)[0].params)


@pytest.mark.parametrize("kind", KINDS)
def test_every_round_is_reported(kind: str) -> None:
    run, _ = _first(kind)
    history, algorithm = run.history, KINDS[kind]
    assert run.state.round == ROUNDS
    assert history["round"].tolist() == list(range(ROUNDS))
    assert history["primed"].tolist() == [t < algorithm.gradient_rounds for t in range(ROUNDS)]
    assert not history["abandoned"].any()
    trained = ~history["primed"] & algorithm.local_steps
    assert ((history["steps"] > 0) == trained).all()
    assert ((history["drift"] > 0) == trained).all()
    assert ((history["update_norm"] > 0) == ~history["primed"]).all()


def test_tables_that_hold_all_cohorts_need_one_program() -> None:
    """Cohorts of one to six clients of one to eight examples, with other learning rates."""
    backend, rng = roomy(), np.random.default_rng(0)
    state, built = a.mime(o.momentum(), 0.1).init(model()), []
    for t in range(6):
        members = [{k: v[None] for k, v in columns(rng, 8).items()} for _ in range(t + 1)]
        masks = [np.arange(8)[None] < rng.integers(1, 9) for _ in members]
        algorithm = a.mime(o.momentum(falling(0.9)), eta=0.1 / (1 + t))
        state, _ = fm.run_round(algorithm, PROBLEM, state, fm.Cohort.from_batches(members, masks), backend=backend)
        built.append(programs())
    assert len(set(built)) == 1


@pytest.mark.parametrize("number", ["initial", "eps", "floor"])
def test_every_number_may_be_a_schedule(number: str) -> None:
    base = o.adagrad(**{number: falling(0.1)})
    run = fm.simulate(a.mime(base, 0.1), PROBLEM, CLIENTS, 2, 4, 4)
    assert run.state.round == 2


def test_fifty_rounds_of_random_cohorts_build_no_program_after_the_second(fact) -> None:
    rng = np.random.default_rng(0)
    clients = population([int(n) for n in np.clip(rng.lognormal(2.5, 1.0, 200), 1, 200)])
    built: list[int] = []
    fm.simulate(
        a.mime(o.momentum(), 0.01),
        PROBLEM,
        clients,
        50,
        8,
        4,
        on_round=lambda *_: built.append(programs()),
        evaluate_every=1,
    )
    fact("programs built after round 2 in 50 rounds of random cohorts", built[-1] - built[1])
    assert built[-1] - built[1] <= 3


@pytest.mark.parametrize("kind", ["mime-adam", "scaffold"])
def test_the_callers_model_stays(kind: str) -> None:
    start = jax.tree.map(jnp.asarray, model())
    fm.simulate(KINDS[kind], PROBLEM, CLIENTS, 2, 4, 4, initial=start)
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(start))
