"""Messages on their way into a mean: sums, or all of them, filled up so that programs need not be compiled again."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

import fedmime as fm
from fedmime.engine.backends.backend import Accepted

MESSAGES = [(0.5, jnp.array([1.0, 5.0])), (0.25, jnp.array([2.0, -3.0])), (0.25, jnp.array([4.0, 1.0]))]


def test_sums_are_weighted_and_what_is_beside_them_is_not() -> None:
    accepted = Accepted(linear=True)
    assert accepted.totals is None
    for w, message in MESSAGES:
        accepted.add(w, message, message, jnp.ones(()))
    totals = accepted.totals
    assert totals is not None
    np.testing.assert_allclose(totals.send, [2.0, 2.0])
    np.testing.assert_allclose(totals.add, [7.0, 3.0])
    assert (float(totals.figures), accepted.weight, totals.kept) == (3.0, 1.0, None)


def test_padding_counts_for_nothing() -> None:
    for combiner in (fm.aggregation.median(), fm.aggregation.krum(0), fm.aggregation.geometric_median(8)):
        found = []
        for rows in (0, 5):
            accepted = Accepted(linear=False, rows=rows)
            for w, message in MESSAGES:
                accepted.add(w, message)
            kept = accepted.collected
            assert len(kept.weights) == max(rows, 3)
            found.append(combiner.combine(kept.messages, kept.weights))
        np.testing.assert_allclose(*found, rtol=1e-12)
