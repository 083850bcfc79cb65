"""Runs of every kind of algorithm: one program for all rounds, and the same numbers every time."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedmime as fm
from engine.setting import KINDS, PROBLEM, a, columns, falling, model, o, population, roomy, same
from fedmime.engine.backends.local import traces
from fedmime.engine.intake import Intake
from fedmime.engine.round import assemble, default_layout, run_ready
from fedmime.engine.schedule import Schedule

ROUNDS = 6
CLIENTS = population([13 + i % 4 for i in range(24)])  # of sizes that fill the same tables


def _run(kind: str, seed: int = 3) -> tuple[fm.Run, list[dict[str, int]]]:
    """A run, and the programs built by the end of each of its rounds."""
    built = []
    run = fm.simulate(
        KINDS[kind], PROBLEM, CLIENTS, ROUNDS, 4, 4, seed=seed, drift=True, on_round=lambda *_: built.append(traces())
    )
    return run, built


_first = functools.cache(_run)


@pytest.mark.parametrize("kind", KINDS)
def test_later_rounds_build_no_program(kind: str) -> None:
    """Other clients, sizes and numbers in every round; only the first round of a phase is compiled."""
    run, built = _run(kind)  # not an earlier one: other tests may have built programs since, or let go of them
    assert KINDS[kind].pooled or len(set(run.history["examples"])) > 1
    primes = KINDS[kind].gradient_rounds
    assert all(now == built[primes] for now in built[primes:])
    assert _run(kind, seed=4)[1][-1] == built[-1]


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
    layout, rng = roomy(), np.random.default_rng(0)
    state, built = a.mime(o.momentum(), 0.1).init(model()), []
    for t in range(6):
        members = [{k: v[None] for k, v in columns(rng, 8).items()} for _ in range(t + 1)]
        masks = [np.arange(8)[None] < rng.integers(1, 9) for _ in members]
        algorithm = a.mime(o.momentum(falling(0.9)), eta=0.1 / (1 + t))
        state, _ = fm.run_round(algorithm, PROBLEM, state, fm.Cohort.from_batches(members, masks), layout=layout)
        built.append(traces())
    assert all(now == built[0] for now in built)


@pytest.mark.parametrize("number", ["initial", "eps", "floor"])
def test_every_number_may_be_a_schedule(number: str) -> None:
    base = o.adagrad(**{number: falling(0.1)})
    run = fm.simulate(a.mime(base, 0.1), PROBLEM, CLIENTS, 2, 4, 4)
    assert run.state.round == 2


def test_fifty_rounds_of_random_cohorts_build_at_most_three_programs_a_phase(fact) -> None:
    rng = np.random.default_rng(0)
    clients = population([int(n) for n in np.clip(rng.lognormal(2.5, 1.0, 200), 1, 200)])
    before = traces()
    fm.simulate(a.mime(o.adam(), 0.01), PROBLEM, clients, 50, 8, 4)
    built = {phase: n - before.get(phase, 0) for phase, n in traces().items()}
    fact("programs built in 50 rounds of random cohorts, per phase", max(built.values()))
    assert max(built.values()) <= 3


@pytest.mark.parametrize("kind", ["mime-adam", "scaffold"])
def test_a_round_may_take_over_the_memory_of_the_state(kind: str) -> None:
    """Donated, the old state is gone and the new one the same; `simulate` never uses up the caller's model."""
    algorithm, ends = KINDS[kind], []
    for donate in (False, True):
        state = algorithm.init(model())
        schedule = Schedule(4, 4, 1, None, 0, "examples")
        layout, intake = default_layout(PROBLEM, 1), Intake(PROBLEM.check)
        for t in range(algorithm.gradient_rounds, algorithm.gradient_rounds + 2):
            cohort = schedule.cohort(algorithm, CLIENTS, t)
            ready = assemble(
                algorithm, PROBLEM, state.server, t, cohort, None,
                devices=1, drift=False, layout=layout, intake=intake, donate=donate,
            )  # fmt: skip
            before = jax.tree.map(jnp.copy, state.server)
            state, _ = run_ready(ready, state._replace(server=before))
            assert all(leaf.is_deleted() == donate for leaf in jax.tree.leaves(before))
        ends.append(state.server)
    assert same(*ends)
    start = jax.tree.map(jnp.asarray, model())
    fm.simulate(algorithm, PROBLEM, CLIENTS, 2, 4, 4, initial=start)
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(start))
