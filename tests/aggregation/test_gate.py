"""The gate: what is let through, what is refused and why."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedmime.aggregation.gate import Reason, counts, judge
from fedmime.vector import Vector


def test_codes_and_labels_do_not_change() -> None:
    """They are recorded with runs."""
    labels = {
        0: "accepted",
        1: "data",
        2: "structure",
        3: "shape",
        5: "not_finite",
        6: "norm",
        7: "weight",
        8: "round",
        9: "duplicate",
        10: "unasked",
        11: "size",
        12: "failed",
        13: "late",
        14: "masks",
    }
    assert {int(reason): reason.label for reason in Reason} == labels


# entries of a message, the bound, and the verdict
VERDICTS = {
    "short": ([3.0, 4.0], 6.0, Reason.ACCEPTED),
    "exactly as long": ([3.0, 4.0], 5.0, Reason.ACCEPTED),
    "too long": ([3.0, 4.0], 4.99, Reason.NORM),
    "zero": ([0.0, 0.0], 0.0, Reason.ACCEPTED),
    "NaN": ([np.nan, 0.0], 1e9, Reason.NOT_FINITE),
    "infinite": ([0.0, -np.inf], np.inf, Reason.NOT_FINITE),
    "NaN beside a square that overflows": ([np.nan, 3e38], np.inf, Reason.NOT_FINITE),
    "bound that is NaN": ([0.0, 0.0], np.nan, Reason.NORM),
    "no bound": ([1e9, -1e9], np.inf, Reason.ACCEPTED),
}
_compiled = jax.jit(judge)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", VERDICTS)
def test_verdicts(name: str, dtype: str) -> None:
    entries, bound, verdict = VERDICTS[name]
    message = Vector({"a": jnp.asarray(entries[:1], dtype), "b": jnp.asarray(entries[1:], dtype)})
    with jax.numpy_dtype_promotion("strict"):
        for found in (judge(message, bound), _compiled(message, bound), _compiled(message, jnp.asarray(bound, dtype))):
            assert found.dtype == jnp.int32
            assert found.shape == ()
            assert found == verdict


@pytest.mark.parametrize(("entry", "dtype"), [(1e30, "float32"), (3e38, "float32"), (1e300, "float64")])
@pytest.mark.parametrize("bound", [1e3, 1e35, np.inf])
def test_squares_that_overflow_are_too_long_and_not_infinite(entry: float, dtype: str, bound: float) -> None:
    for entries in ([entry], [0.0, -entry], [entry] * 1000):
        assert _compiled(jnp.asarray(entries, dtype), bound) == Reason.NORM


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_measured_in_single(dtype: str) -> None:
    message = jnp.full(100, 300.0, dtype)  # 300² is infinite in float16
    assert _compiled(message, 3001.0) == Reason.ACCEPTED
    assert _compiled(message, 2990.0) == Reason.NORM


def test_verdicts_of_a_cohort_in_a_loop() -> None:
    messages = {"w": jnp.asarray([[3.0, 4.0], [np.nan, 0.0], [30.0, 40.0]])}
    found = jax.jit(lambda m: jax.lax.map(lambda each: judge(each, 6.0), m))(messages)
    assert found.tolist() == [Reason.ACCEPTED, Reason.NOT_FINITE, Reason.NORM]
    assert counts(found) == counts(np.asarray(found)) == {"accepted": 1, "not_finite": 1, "norm": 1}
    assert list(counts([6, 0, 6, Reason.DATA, 0])) == ["accepted", "data", "norm"]
    assert counts([]) == {}
    with pytest.raises(ValueError, match="77"):
        counts([77])
