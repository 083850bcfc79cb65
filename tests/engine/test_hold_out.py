"""What is held out of a client's examples."""

import numpy as np

from engine.linear import PLAIN, SIZES
from fedmime.engine.hold_out import Part


def test_parts_of_clients_are_disjoint_and_seeded() -> None:
    held, rest, other = (Part(PLAIN, 0.3, *how) for how in ((0, True), (0, False), (1, True)))
    np.testing.assert_array_equal(held.sizes, [2, 0, 0, 12, 2, 4, 1, 3, 3, 1, 9, 1])
    np.testing.assert_array_equal(held.sizes + rest.sizes, PLAIN.sizes)
    for i in range(len(SIZES)):
        both = np.concatenate([held.client_at(i)["y"], rest.client_at(i)["y"]])
        np.testing.assert_array_equal(np.sort(both), np.sort(PLAIN.client_at(i)["y"]))
        assert len(held.client_at(i)["y"]) == held.sizes[i]
    assert not np.array_equal(held.client_at(3)["y"], other.client_at(3)["y"])
