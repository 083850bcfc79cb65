"""Recipes as pytrees."""

import jax
import pytest

from fedmime import aggregation, optimizers
from fedmime.aggregation.combiner import Mean
from fedmime.aggregation.robust import Median
from fedmime.hyperparameters import recipe, static


@recipe
class One:
    x: float
    mode: str = static(default="a")


@recipe
class Other:
    x: float
    mode: str = static(default="a")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (One(1.0), Other(1.0)),
        (Mean(), Median()),
        (aggregation.random_k(0.1), aggregation.top_k(0.1)),
        (aggregation.chain(aggregation.mean()), aggregation.chain(aggregation.median())),
        (One(1.0), One(1.0, "b")),
    ],
)
def test_structures_differ_between_classes_and_modes(one, other) -> None:
    assert jax.tree.structure(one) != jax.tree.structure(other)


def test_numbers_are_leaves_and_modes_are_not() -> None:
    made = One(2.0, "b")
    leaves, structure = jax.tree.flatten(made)
    assert leaves == [2.0]
    assert jax.tree.unflatten(structure, leaves) == made
    assert jax.tree.structure(One(3.0, "b")) == structure
    assert [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(optimizers.momentum(0.9))] == [".beta"]
