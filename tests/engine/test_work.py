"""What a round asks is known before it begins: the numbers of its round, shares, keys and the step that is drawn."""

import jax
import numpy as np

import fedmime as fm
from engine.setting import a, columns, model, o
from fedmime.algorithms.abstract import Anchor
from fedmime.engine.work import run_key, server_random_numbers, work_of

KEY = run_key(3)


def _cohort() -> fm.Cohort:
    """Clients of two and six examples, with one step each."""
    batches = [{name: column[None] for name, column in columns(np.random.default_rng(n), n).items()} for n in (2, 6)]
    return fm.Cohort.from_batches(batches)


def test_a_round_has_its_own_numbers_and_shares_of_the_whole() -> None:
    work = work_of(a.fedavg(lambda t: 1.0 / (1 + t)), Anchor(), 3, _cohort(), KEY)
    assert (work.round, work.algorithm.eta, work.wants_gradients, work.pick) == (3, 0.25, False, -1)
    np.testing.assert_allclose(work.update_shares, [0.25, 0.75])
    assert jax.random.key_data(work.key).tolist() == jax.random.key_data(jax.random.fold_in(KEY, 3)).tolist()


def test_a_round_for_gradients_alone_has_no_anchor() -> None:
    mime = a.mime(o.momentum(), 0.1, prime_rounds=1)
    anchor, state = Anchor(point=0, points=1), mime.init(model())
    states = (state, state._replace(round=1), state._replace(round=1, repeats=1))
    first, second, repeated = (
        work_of(mime, anchor, state.round, _cohort(), KEY, prime=state.primes(mime)) for state in states
    )
    assert (first.wants_gradients, second.wants_gradients) == (True, True)
    assert (first.anchor.point, second.anchor.point) == (None, 0)
    assert (first.prime, second.prime, repeated.prime) == (True, False, True)


def test_the_step_that_is_drawn_is_one_of_the_cohort() -> None:
    drawing = a.mime_mvr(0.1, 0.9, output="random")
    picks = {work_of(drawing, Anchor(), t, _cohort(), KEY).pick for t in range(20)}
    assert picks == {0, 1}
    numbers = server_random_numbers(KEY)
    assert ((numbers >= 0) & (numbers < 1)).all()


def test_all_bits_of_a_seed_count() -> None:
    keys = [jax.random.key_data(run_key(seed)).tolist() for seed in (0, 1, 2**31, 2**32, 2**32 + 1, 2**40, 2**63 - 1)]
    assert len({tuple(key) for key in keys}) == len(keys)
    assert keys[1] == jax.random.key_data(jax.random.key(1)).tolist()
