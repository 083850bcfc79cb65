"""Arrays in memory: what is accepted, what is refused and in which words."""

import numpy as np
import pytest

from fedmime.data import Population, from_arrays
from fedmime.errors import DataError


def client(n: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {"x": rng.random((n, 3), np.float32), "y": rng.integers(0, 5, n, np.int32)}


def test_reads_back_by_id_and_by_position() -> None:
    given = {"a": client(3, 1), "b": client(1, 2), "empty": client(0)}
    population = from_arrays(given)
    assert list(population.ids) == ["a", "b", "empty"]
    assert len(population) == 3
    assert population.sizes.tolist() == [3, 1, 0]
    assert population.sizes.dtype == np.int64
    assert population.fields["x"] == (np.float32, (3,), False)
    np.testing.assert_array_equal(population.client("b")["x"], given["b"]["x"])
    np.testing.assert_array_equal(population.client_at(0)["y"], given["a"]["y"])
    assert population.client_at(2)["x"].shape == (0, 3)
    assert population.test is None
    assert population.test_clients is None


def test_an_iterable_of_pairs_is_accepted() -> None:
    population = from_arrays(((str(i), client(i)) for i in range(4)), test=client(2))
    assert population.sizes.tolist() == [0, 1, 2, 3]
    assert population.test is not None
    assert len(population.test["y"]) == 2


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "no clients"),
        ({"a": {}}, "client 'a'.*non-empty dict"),
        ({"a": {"x": 3.0}}, "client 'a', field 'x' is a single value 3.0"),
        ({"a": {"x": np.zeros((3, 2)), "y": np.zeros(4)}}, "client 'a': fields differ in length: x has 3, y has 4"),
        ({"a": {"x": np.array([None, 1])}}, "client 'a', field 'x' has dtype object"),
        ({"a": {"x": [[[1], [2, 3]], [[1], [2]]]}}, r"client 'a', field 'x' holds \[\[\[1\], .*; sequences of"),
        ({"a": {"x": [[1, 2], 3]}}, "client 'a', field 'x' has dtype object"),
        ({"a": {"x": np.array(["2020-01-01"], "M8[D]")}}, "field 'x' has dtype datetime64"),
        ({"a": client(2), "b": {"x": np.zeros((2, 3), np.float32)}}, r"client 'b' has fields \['x'\]"),
        ({"a": client(2), "b": client(2) | {"x": np.zeros((2, 3))}}, "client 'b', field 'x' holds float64"),
        ({"a": client(2), "b": client(2) | {"x": np.zeros((2, 4), np.float32)}}, r"holds float32\[4\]"),
        ([("a", client(1)), ("a", client(1))], "client id 'a' appears twice"),
        ({7: client(1)}, "client id 7 is int"),
    ],
)
def test_refusals_are_one_line_naming_client_and_field(given: dict, words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        from_arrays(given)
    assert "\n" not in str(caught.value)


def test_a_test_set_of_another_shape_is_refused() -> None:
    with pytest.raises(DataError, match="test set, field 'x'"):
        from_arrays({"a": client(1)}, test=client(1) | {"x": np.zeros((1, 2), np.float32)})


def test_unknown_clients_are_named() -> None:
    population = from_arrays({"f0000_14": client(1)})
    with pytest.raises(DataError, match="no client 'nobody'; ids look like 'f0000_14'"):
        population.client("nobody")
    with pytest.raises(DataError, match="position 5"):
        population.client_at(5)


def test_text_and_sequences() -> None:
    population = from_arrays({"a": {"t": ["one", b"two\0"], "s": [np.arange(2), np.arange(5)]}})
    assert population.fields["t"].text
    assert population.fields["s"].ragged
    assert population.client("a")["t"].tolist() == [b"one", b"two\0"]
    assert [len(s) for s in population.client("a")["s"]] == [2, 5]


@pytest.mark.parametrize("values", [[[1, 2], [3]], [(1, 2), (3,)], ((1, 2), [3]), [range(1, 3), np.array([3])]])
def test_sequences_of_differing_lengths_are_any_lists(values) -> None:
    population = from_arrays({"a": {"s": values}})
    assert population.fields["s"].ragged
    assert [item.tolist() for item in population.client("a")["s"]] == [[1, 2], [3]]


def test_identity_follows_ids_contents_and_dtypes() -> None:
    def identity(**clients: dict) -> str:
        return from_arrays(clients).identity()

    a = client(3)
    seen = {
        identity(a=a),
        identity(b=a),
        identity(a=a, b=a),
        identity(a=a | {"y": a["y"] + 1}),
        identity(a=a | {"y": a["y"].astype(np.int64)}),
        identity(a={"t": ["ab", "c"]}),
        identity(a={"t": ["a", "bc"]}),
    }
    assert len(seen) == 7
    assert identity(a=a) in seen


def test_reading_calls_for_one_client_only() -> None:
    asked: list[int] = []

    def read(index: int) -> dict[str, np.ndarray]:
        asked.append(index)
        return client(2)

    fields = from_arrays({"a": client(2)}).fields
    population = Population("lazy", [str(i) for i in range(1000)], np.full(1000, 2), fields, read, identity="x")
    population.client("17")
    population.client_at(-1)
    assert asked == [17, 999]
