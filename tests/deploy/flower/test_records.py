"""Byte strings in Flower's messages: they come back, they are bounded, and nodes share what is the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmime.deploy.flower import records

flwr = pytest.importorskip("flwr.app")


@pytest.fixture(autouse=True, scope="module")
def _small_parts():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "PART", 8)
        yield


@given(st.binary(max_size=40))
def test_bytes_come_back(data: bytes) -> None:
    content = records.wrapped(data)
    assert records.unwrapped(content, len(data)) == data
    assert all(len(record["bytes"]) <= 8 for record in content.values())
    if data:
        with pytest.raises(records.RecordError, match=f"has {len(data)} bytes, accepted are at most {len(data) - 1}"):
            records.unwrapped(content, len(data) - 1)


@given(one=st.binary(max_size=7), other=st.binary(max_size=7), payload=st.binary(min_size=16, max_size=40))
def test_requests_that_differ_at_the_beginning_share_the_rest(one: bytes, other: bytes, payload: bytes) -> None:
    ids = [[r.object_id for r in records.wrapped(head + payload).values()] for head in (one, other)]
    whole = len(payload) // 8
    assert ids[0][-whole:] == ids[1][-whole:]


@pytest.mark.parametrize(
    "content",
    [
        {"a": {"bytes": b"x"}},
        {"000001": {"bytes": b"x"}},
        {"000000": {"bytes": "text"}},
        {"000000": {"bytes": [b"x", b"y"]}},
        {"000000": {"other": b"x"}},
        {"000000": {"bytes": b"x", "more": b"y"}},
    ],
)
def test_other_content_is_refused(content: dict) -> None:
    found = flwr.RecordDict({name: flwr.ConfigRecord(record) for name, record in content.items()})
    with pytest.raises(records.RecordError, match="no part of a message of fedmime"):
        records.unwrapped(found, 100)


def test_arrays_are_refused() -> None:
    import numpy as np

    content = flwr.RecordDict({"000000": flwr.ArrayRecord([np.zeros(3)])})
    with pytest.raises(records.RecordError):
        records.unwrapped(content, 10_000)


def test_a_part_that_is_named_many_times_counts_many_times() -> None:
    """Flower stores equal records once, so a sender could announce much and send little."""
    record = flwr.ConfigRecord({"bytes": b"x" * 8})
    content = flwr.RecordDict({f"{i:06d}": record for i in range(1000)})
    with pytest.raises(records.RecordError, match="has 8000 bytes"):
        records.unwrapped(content, 7999)
