"""The gate: what is let through, what is refused and why, and that nothing a client sends makes it fail."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedmime.aggregation.gate import Expected, Reason, Reply, counts, examine, judge
from fedmime.vector import Vector, by_place

MODEL = {"dense": {"w": np.full((3, 2), 0.5, np.float32), "b": np.zeros(4, np.float32)}}
SHAPES = by_place(jax.eval_shape(lambda: jax.tree.map(jnp.asarray, MODEL)))
GOOD = by_place(MODEL)
EXPECTED = Expected(
    round=7,
    shapes=SHAPES,
    largest_norm=10.0,
    largest_weight=1e6,
    seen=frozenset({"a"}),
    asked=frozenset({"a", "b", "c"}),
)


def test_codes_and_labels_do_not_change() -> None:
    """They are recorded with runs."""
    labels = [
        "accepted",
        "data",
        "structure",
        "shape",
        "dtype",
        "not_finite",
        "norm",
        "weight",
        "round",
        "duplicate",
        "unasked",
        "size",
    ]
    assert {int(reason): reason.label for reason in Reason} == dict(enumerate(labels))


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


def _reply(weight=3.0, client="b", round_number=7, **arrays) -> Reply:
    """A good reply, but for what is given; dots in names are written as two underscores, None leaves an array out."""
    named = {name.replace("__", "."): array for name, array in arrays.items()}
    return Reply(round_number, client, weight, {k: v for k, v in (GOOD | named).items() if v is not None})


def _bias(*entries: float, dtype="float32") -> np.ndarray:
    return np.array(entries, dtype)


B, W = GOOD["dense.b"], GOOD["dense.w"]
REPLIES = {
    "good": (_reply(), Reason.ACCEPTED),
    "good, by its last client": (_reply(client="c"), Reason.ACCEPTED),
    "good, in another memory layout": (_reply(dense__w=np.asfortranarray(W)), Reason.ACCEPTED),
    # fault 36: replays
    "earlier round": (_reply(round_number=6), Reason.ROUND),
    "later round": (_reply(round_number=8), Reason.ROUND),
    "round of another type": (_reply(round_number="7"), Reason.ROUND),
    "round as a float": (_reply(round_number=7.0), Reason.ROUND),
    "same round again": (_reply(client="a"), Reason.DUPLICATE),
    # fault 37: shapes and structure
    "wrong shape": (_reply(dense__b=np.zeros(5, np.float32)), Reason.SHAPE),
    "broadcastable shape": (_reply(dense__b=np.zeros(1, np.float32)), Reason.SHAPE),
    "scalar": (_reply(dense__b=np.zeros((), np.float32)), Reason.SHAPE),
    "additional axis": (_reply(dense__b=np.zeros((1, 4), np.float32)), Reason.SHAPE),
    "transposed": (_reply(dense__w=W.T), Reason.SHAPE),
    "missing leaf": (_reply(dense__b=None), Reason.STRUCTURE),
    "extra leaf": (_reply(dense__c=B), Reason.STRUCTURE),
    "renamed leaf": (_reply(dense__b=None, dense__c=B), Reason.STRUCTURE),
    "no leaves": (Reply(7, "b", 3.0, {}), Reason.STRUCTURE),
    "list of arrays": (Reply(7, "b", 3.0, [W, B]), Reason.STRUCTURE),  # type: ignore[arg-type]
    "nested arrays": (Reply(7, "b", 3.0, MODEL), Reason.STRUCTURE),  # type: ignore[arg-type]
    "list in place of an array": (_reply(dense__b=[0.0] * 4), Reason.STRUCTURE),
    "array that hides its entries": (_reply(dense__b=np.ma.masked_invalid(_bias(0, 0, 0, np.nan))), Reason.STRUCTURE),
    "no reply": (None, Reason.STRUCTURE),
    # fault 38: types and entries
    "wider type": (_reply(dense__b=B.astype(np.float64)), Reason.DTYPE),
    "integers": (_reply(dense__b=B.astype(np.int32)), Reason.DTYPE),
    "half precision": (_reply(dense__b=B.astype(ml_dtypes.bfloat16)), Reason.DTYPE),
    "other byte order": (_reply(dense__b=B.astype(">f4" if np.little_endian else "<f4")), Reason.DTYPE),
    "NaN": (_reply(dense__b=_bias(0, np.nan, 0, 0)), Reason.NOT_FINITE),
    "infinity": (_reply(dense__b=_bias(0, 0, np.inf, 0)), Reason.NOT_FINITE),
    "1e30": (_reply(dense__b=_bias(0, 0, 0, 1e30)), Reason.NORM),
    "just too long": (_reply(dense__b=_bias(0, 0, 0, 10.0)), Reason.NORM),
    # fault 39: weights
    "negative weight": (_reply(weight=-1.0), Reason.WEIGHT),
    "no weight": (_reply(weight=0), Reason.WEIGHT),
    "NaN weight": (_reply(weight=float("nan")), Reason.WEIGHT),
    "infinite weight": (_reply(weight=float("inf")), Reason.WEIGHT),
    "huge weight": (_reply(weight=1e12), Reason.WEIGHT),
    "weight beyond floats": (_reply(weight=10**400), Reason.WEIGHT),
    "half precision weight beside a bound it cannot hold": (_reply(weight=np.float16(3)), Reason.ACCEPTED),
    "largest weight": (_reply(weight=10**6), Reason.ACCEPTED),
    "NumPy weight": (_reply(weight=np.int64(5)), Reason.ACCEPTED),
    "truth for a weight": (_reply(weight=True), Reason.WEIGHT),
    "text for a weight": (_reply(weight="3"), Reason.WEIGHT),
    "array for a weight": (_reply(weight=np.ones(2)), Reason.WEIGHT),
    "duration for a weight": (_reply(weight=np.timedelta64(5, "s")), Reason.WEIGHT),
    # fault 41: objects
    "object array": (_reply(dense__b=np.array([0.0] * 4, object)), Reason.DTYPE),
    "text array": (_reply(dense__b=np.array(["0"] * 4)), Reason.DTYPE),
    "records": (_reply(dense__b=np.zeros(4, [("x", np.float32)])), Reason.DTYPE),
    # fault 43: many names for one client; the transport knows who it is
    "name that was not asked": (_reply(client="a2"), Reason.UNASKED),
    "client of another type": (_reply(client=["b"]), Reason.STRUCTURE),
    "truth for a client": (_reply(client=True), Reason.STRUCTURE),
    "no client": (_reply(client=None), Reason.STRUCTURE),
}


@pytest.mark.parametrize("name", REPLIES)
def test_replies(name: str, fact) -> None:
    reply, reason = REPLIES[name]
    assert examine(reply, EXPECTED) is reason
    fact("replies that the gate judges", 0)


def test_one_reply_of_each_client_counts() -> None:
    """Fault 43: whatever number of replies arrives from one authenticated client, in whatever order."""
    seen: frozenset[str | int] = frozenset()
    fates = []
    for client in ["c", "b", "b", "c", "b", "d"]:
        fates.append(examine(_reply(client=client), EXPECTED._replace(seen=seen)))
        seen |= {client} if fates[-1] is Reason.ACCEPTED else frozenset()
    assert counts(fates) == {"accepted": 2, "duplicate": 3, "unasked": 1}


def test_everybody_may_reply_where_no_cohort_is_given() -> None:
    anybody = EXPECTED._replace(asked=None)
    assert examine(_reply(client="somebody"), anybody) is Reason.ACCEPTED
    assert examine(_reply(client=5), anybody) is Reason.ACCEPTED
    assert examine(_reply(client="a"), anybody) is Reason.DUPLICATE


# Fuzzing: one part of a reply at a time, so that every check is reached, and all at once.
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.timedeltas(),
    st.sampled_from([10**400, np.float16("nan"), np.longdouble(3), np.complex64(1j), np.str_("b"), np.bool_(True)]),
    st.sampled_from([np.timedelta64(7, "s"), np.datetime64("2020-01-01"), np.void(b"x"), np.int8(7), Reason.NORM]),
)
shapes = st.sampled_from([(4,), (3, 2)]) | hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
dtypes = st.one_of(
    st.sampled_from([np.float32, object, ml_dtypes.bfloat16, [("x", "f4")], "S3", "U3", "V2"]).map(np.dtype),
    hnp.scalar_dtypes(),
)
arrays = hnp.arrays(np.float32, shapes) | st.builds(np.zeros, shapes, dtypes)
things = st.recursive(
    scalars | arrays,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)
names = st.sampled_from(list(SHAPES)) | st.text(max_size=8) | st.integers() | st.none() | st.tuples(st.floats())
entries = st.fixed_dictionaries({name: hnp.arrays(np.float32, like.shape) for name, like in SHAPES.items()})
messages = st.dictionaries(names, things, max_size=4) | things
PARTS = {
    "round": st.builds(Reply, things, st.just("b"), st.just(3.0), st.just(GOOD)),
    "client": st.builds(Reply, st.just(7), things, st.just(3.0), st.just(GOOD)),
    "weight": st.builds(Reply, st.just(7), st.just("b"), things, st.just(GOOD)),
    "arrays": st.builds(Reply, st.just(7), st.just("b"), st.just(3.0), messages),
    "one array": things.map(lambda thing: Reply(7, "b", 3.0, GOOD | {"dense.b": thing})),
    "entries": st.builds(Reply, st.just(7), st.just("b"), st.just(3.0), entries),
    "all parts": st.builds(Reply, things, things, things, messages),
    "no reply": things,
}


@pytest.mark.parametrize("part", PARTS)
def test_nothing_that_a_client_sends_makes_the_gate_fail(part: str) -> None:
    """And what it accepts is what was asked for."""

    @settings(max_examples=100)
    @given(PARTS[part])
    def holds(reply) -> None:
        reason = examine(reply, EXPECTED)
        assert isinstance(reason, Reason)
        if reason is Reason.ACCEPTED:
            assert reply.round == 7
            assert reply.client in ("b", "c")
            assert 0 < reply.weight <= EXPECTED.largest_weight
            flat = np.concatenate([reply.arrays[name].ravel() for name in SHAPES]).astype(float)
            assert flat.shape == (10,)
            assert np.linalg.norm(flat) <= EXPECTED.largest_norm * (1 + 1e-6)

    holds()
