"""The weighted mean, which combines messages unless another combiner is asked for."""

import jax.numpy as jnp
import numpy as np
import pytest

from fedmime.aggregation.combiner import mean


@pytest.mark.parametrize(("dtype", "close"), [(np.float64, 1e-14), (np.float32, 1e-6)])
def test_it_is_the_mean_by_weights_that_need_not_sum_to_one(dtype: type, close: float) -> None:
    rng = np.random.default_rng(0)
    messages = {"w": rng.normal(size=(4, 2, 3)).astype(dtype), "b": rng.normal(size=4).astype(dtype)}
    weights = np.asarray([3.0, 1.0, 0.0, 2.0])
    found = mean().combine(messages, jnp.asarray(weights))
    for name, rows in messages.items():
        assert found[name].dtype == dtype
        np.testing.assert_allclose(found[name], np.average(rows, axis=0, weights=weights), close, close)


def test_sums_suffice_for_it() -> None:
    assert mean().linear
