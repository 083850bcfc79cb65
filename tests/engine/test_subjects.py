"""Who is measured, and on which examples."""

import numpy as np
import pytest

import fedmime as fm
from engine.linear import PARAMS, PROBLEM, TESTED, linear_clients, linear_columns


def test_some_clients() -> None:
    everyone = fm.evaluate(PROBLEM, PARAMS, TESTED)
    some = fm.evaluate(PROBLEM, PARAMS, TESTED, clients=3)
    assert some.ids == (everyone.ids[0], everyone.ids[5], everyone.ids[-1])
    assert some.pooled == pytest.approx(everyone.pooled, rel=1e-12)  # the whole test set in any case
    named = fm.evaluate(PROBLEM, PARAMS, TESTED, clients=["c4", "new"])
    assert named.ids == ("c4", "new")
    assert named.clients["loss"][0] == pytest.approx(everyone.clients["loss"][everyone.ids.index("c4")], rel=1e-12)
    assert fm.evaluate(PROBLEM, PARAMS, TESTED, clients=100).ids == everyone.ids


def test_clients_that_never_trained_are_tuned_on_their_own_examples() -> None:
    strangers = fm.data.from_arrays({f"new{i}": linear_columns(np.random.default_rng(i), 10) for i in range(3)})
    clients = fm.data.from_arrays(linear_clients((4, 4)), test_clients=strangers)
    found = fm.evaluate(PROBLEM, PARAMS, clients, finetune=1, finetune_eta=0.1)
    assert (found.ids, found.clients_on, found.pooled_on) == (("new0", "new1", "new2"), "held out", "test")
    np.testing.assert_array_equal(found.examples, [2, 2, 2])
