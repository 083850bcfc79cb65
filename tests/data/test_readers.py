"""Readers of other people's formats: equal data gives equal populations, and what is wrong is named with its place."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas
import pytest
from PIL import Image

import fedmime as fm
from fedmime.data import Pad, Population
from fedmime.errors import ConfigError, DataError

datasets.disable_progress_bars()
# Rows of two clients in turn; the test rows hold whole numbers only, which must not change any dtype.
USERS, TEST_USERS = ["10", "9", "10", "9", "10"], ["9", "10"]
ROWS = np.array([[0.5, 1, 2], [3, 4.25, 5], [0.1, 7, 8], [9, 10, 11.75], [12, 13, -1]], np.float32)
TEST_ROWS = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
LABELS, TEST_LABELS = [2, 0, 1, 1, 0], [1, 2]
COLUMNS = ["a", "b", "c"]


def columns(users: list[str], rows: np.ndarray, labels: list[int]) -> dict[str, list[Any]]:
    return {"user": users, **{name: rows[:, i].tolist() for i, name in enumerate(COLUMNS)}, "label": labels}


TRAIN, TEST = columns(USERS, ROWS, LABELS), columns(TEST_USERS, TEST_ROWS, TEST_LABELS)


def through_huggingface(folder: Path) -> Population:
    features = datasets.Features(
        {"user": datasets.Value("string"), **dict.fromkeys(COLUMNS, datasets.Value("float32"))}
        | {"label": datasets.ClassLabel(names=["u", "v", "w"])}
    )
    both = {split: datasets.Dataset.from_dict(told, features) for split, told in (("train", TRAIN), ("test", TEST))}
    return fm.data.from_huggingface(datasets.DatasetDict(both), by="user", x=COLUMNS, y="label", test="test")


def through_pandas(folder: Path) -> Population:
    train = pandas.DataFrame(TRAIN).assign(user=[int(user) for user in USERS])
    return fm.data.from_pandas(train, by="user", x=COLUMNS, y="label", test=pandas.DataFrame(TEST))


def through_csv(folder: Path) -> Population:
    for name, told in (("train.csv", TRAIN), ("test.csv", TEST)):
        with (folder / name).open("w", newline="") as file:
            csv.writer(file).writerows([list(told), *zip(*told.values(), strict=True)])
    return fm.data.from_csv(folder / "train.csv", by="user", x=COLUMNS, y="label", test=folder / "test.csv")


def leaf(users: list[str], rows: np.ndarray, labels: list[int], chosen: list[str]) -> dict[str, Any]:
    own = {user: [i for i, owner in enumerate(users) if owner == user] for user in chosen}
    data = {u: {"x": rows[own[u]].tolist(), "y": [labels[i] for i in own[u]]} for u in chosen}
    return {"users": chosen, "num_samples": [len(own[user]) for user in chosen], "user_data": data}


def through_leaf(folder: Path) -> Population:
    for split in ("train", "test"):
        (folder / split).mkdir()
    for number, user in enumerate(["10", "9"]):  # a file for each user
        (folder / "train" / f"{number}.json").write_text(json.dumps(leaf(USERS, ROWS, LABELS, [user])))
    (folder / "test" / "all.json").write_text(json.dumps(leaf(TEST_USERS, TEST_ROWS, TEST_LABELS, ["10", "9"])))
    return fm.data.from_leaf(folder / "train", folder / "test")


class Tensor:
    """What a reader uses of a tensor of PyTorch."""

    def __init__(self, values: Any) -> None:
        self._values = np.asarray(values)

    def detach(self) -> "Tensor":
        return self

    def cpu(self) -> "Tensor":
        return self

    def numpy(self) -> np.ndarray:
        return self._values


def items(told: dict[str, list[Any]]) -> list[dict[str, Any]]:
    rows = zip(told["user"], zip(*(told[name] for name in COLUMNS), strict=True), told["label"], strict=True)
    return [{"user": user, "x": Tensor(np.array(x, np.float32)), "y": Tensor(np.int64(y))} for user, x, y in rows]


def through_torch(folder: Path) -> Population:
    return fm.data.from_torch(items(TRAIN), by="user", test=items(TEST))


def through_torch_positions(folder: Path) -> Population:
    pairs = [(item["x"], item["y"]) for item in items(TRAIN)]
    made = fm.data.from_torch(pairs, clients={"10": [0, 2, 4], "9": [1, 3]})
    again = fm.data.from_torch(pairs, by=np.array(USERS))
    assert made.identity() == again.identity()
    return fm.data.from_arrays(((i, made.client(i)) for i in made.ids), test_clients=plain("test"))


def plain(split: str) -> Population:
    users, rows, labels = (USERS, ROWS, LABELS) if split == "train" else (TEST_USERS, TEST_ROWS, TEST_LABELS)
    own = {user: [i for i, owner in enumerate(users) if owner == user] for user in ("9", "10")}  # ids by number
    clients = {u: {"x": rows[own[u]], "y": np.array(labels, np.int32)[own[u]]} for u in own}
    return fm.data.from_arrays(clients, test_clients=plain("test") if split == "train" else None)


@pytest.mark.parametrize(
    "read",
    [
        through_huggingface,
        through_pandas,
        through_csv,
        through_leaf,
        through_torch,
        through_torch_positions,
    ],
)
def test_equal_data_gives_equal_populations(read: Callable[[Path], Population], tmp_path: Path) -> None:
    found, expected = read(tmp_path), plain("train")
    assert list(found.ids) == list(expected.ids) == ["9", "10"]
    assert found.fields == expected.fields
    for client in found.ids:
        for field, values in expected.client(client).items():
            np.testing.assert_array_equal(found.client(client)[field], values)
    assert found.identity() == expected.identity()
    assert found.test is not None
    np.testing.assert_array_equal(found.test["x"], TEST_ROWS)


def test_a_test_set_without_clients_is_pooled() -> None:
    frame = pandas.DataFrame(TRAIN)
    test = pandas.DataFrame(TEST).drop(columns="user")
    population = fm.data.from_pandas(frame, by="user", x=COLUMNS, y="label", test=test)
    assert population.test_clients is None
    assert population.test is not None
    np.testing.assert_array_equal(population.test["x"], TEST_ROWS)


def test_images_are_scaled_and_have_channels() -> None:
    grey = [Image.fromarray(np.full((2, 3), value, np.uint8)) for value in (0, 51, 255)]
    features = datasets.Features({"image": datasets.Image(), "writer": datasets.Value("int64")})
    data = datasets.Dataset.from_dict({"image": grey, "writer": [4, 4, 5]}, features)
    population = fm.data.from_huggingface(data, by="writer", x="image")
    assert population.fields["x"] == (np.float32, (2, 3, 1), False)
    np.testing.assert_array_equal(population.client("4")["x"][:, 0, 0, 0], np.array([0, 0.2], np.float32))
    colour = Image.fromarray(np.array([[[255, 0, 51]]], np.uint8)).convert("P")
    (found,) = fm.data.from_torch([(colour, 1)], by=["a"]).pool()["x"]
    assert found.shape == (1, 1, 3)
    deep = Image.fromarray(np.array([[65535, 0]], np.uint16))
    np.testing.assert_array_equal(fm.data.from_torch([(deep, 1)], by=["a"]).pool()["x"].ravel(), [1, 0])


def test_text_dtypes_and_classes() -> None:
    frame = pandas.DataFrame({"who": ["a", "b"], "said": ["yes", "é"], "kind": ["cat", "dog"], "time": [2**40, 1]})
    given = {"by": "who", "x": "said", "y": "kind", "classes": ["dog", "cat"]}
    population = fm.data.from_pandas(frame, **given, fields={"t": "time"}, dtypes={"t": "int64"})
    assert population.client("b")["x"].tolist() == ["é".encode()]
    assert population.pool()["y"].tolist() == [1, 0]
    assert population.client("a")["t"].tolist() == [2**40]
    with pytest.raises(DataError, match="column 'time', row 0 holds 1099511627776, which int32 cannot hold"):
        fm.data.from_pandas(frame, by="who", x="time")


def test_sequences_need_a_padding_rule() -> None:
    told = {"u": ["a", "b", "a"], "tokens": [[1, 2, 3], [], [4]]}
    data = datasets.Dataset.from_dict(told)
    with pytest.raises(DataError, match=r"column 'tokens', row 1 has shape \(0,\).*give pad=\{'x': fm.data.Pad"):
        fm.data.from_huggingface(data, by="u", x="tokens")
    padded = fm.data.from_huggingface(data, by="u", x="tokens", pad={"x": Pad(4, value=-1)})
    assert padded.client("a")["x"].tolist() == [[1, 2, 3, -1], [4, -1, -1, -1]]
    assert padded.client("b")["x"].tolist() == [[-1] * 4]
    with pytest.raises(DataError, match=r"row 0 has 3 numbers, more than Pad\(length=2\)"):
        fm.data.from_huggingface(data, by="u", x="tokens", pad={"x": Pad(2)})
    rule = {"x": Pad(2, truncate=True)}
    cut = fm.data.from_huggingface(data, by="u", x="tokens", pad=rule)
    assert cut.client("a")["x"].tolist() == [[1, 2], [4, 0]]
    same = fm.data.from_arrays({"a": {"x": [[1, 2, 3], [4]]}, "b": {"x": [np.array([], int)]}}, pad=rule)
    assert same.client("a")["x"].tolist() == cut.client("a")["x"].tolist()
    assert same.fields["x"] == (np.int64, (2,), False)


def test_csv_sequences(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('u,s\na,"1 2 3"\nb,\n\na,4\n')
    population = fm.data.from_csv(tmp_path / "t.csv", by="u", x="s", pad={"x": Pad(3)})
    assert population.client("a")["x"].tolist() == [[1, 2, 3], [4, 0, 0]]
    assert population.client("b")["x"].tolist() == [[0, 0, 0]]


def frame(**columns: Any) -> pandas.DataFrame:
    return pandas.DataFrame({"u": ["a", "b"], "x": [1.0, 2.0]} | columns)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: fm.data.from_pandas(frame(), by="nobody"), "by='nobody' is no column; accepted are 'u', 'x'"),
        (lambda: fm.data.from_pandas(frame(), by="u", x="z"), "x='z' is no column"),
        (lambda: fm.data.from_pandas(frame(x=[1.0, None]), by="u"), "column 'x', row 1 is missing"),
        (lambda: fm.data.from_pandas(frame(u=["a", None]), by="u"), "column 'u', row 1 is missing"),
        (lambda: fm.data.from_pandas(frame(u=[1.0, 2.5]), by="u"), r"column 'u', row 0 holds 1.0 \(float\); clients"),
        (lambda: fm.data.from_pandas(frame(x=[1, "two"]), by="u"), r"column 'x', row 1 holds 'two' \(str\); the rows"),
        (lambda: fm.data.from_pandas(frame(x=[1.0, np.inf]), by="u"), "column 'x', row 1 holds inf; accepted are fin"),
        (lambda: fm.data.from_pandas(frame(x=[{}, {}]), by="u"), r"column 'x', row 0 holds \{\} \(dict\)"),
        (lambda: fm.data.from_pandas(frame(x=[[1, None], [1, 2]]), by="u"), r"row 0 holds \[1, None\]"),
        (lambda: fm.data.from_pandas(frame(x=[[[1], [2, 3]], [[1]]]), by="u"), "row 0 holds .* parts differ in length"),
        (
            lambda: fm.data.from_pandas(frame(x=["p", "q"]), by="u", x=["x"]),
            "column 'x' holds text; columns that are j",
        ),
        (lambda: fm.data.from_pandas(frame(), by="u", test=frame().drop(columns="x")), "test: column 'x' is missing"),
        (lambda: fm.data.from_pandas(frame().iloc[:0], by="u"), "no rows"),
        (lambda: fm.data.from_pandas(frame(y=["p", "q"]), by="u", y="y", classes=["p"]), "row 1 holds 'q'; accepted"),
        (lambda: fm.data.from_torch([(1, 2), (1,)], by="ab"), "item 1 is 1 entries"),
        (lambda: fm.data.from_torch([(1, 2)], by=["a", "b"]), "by has 2 ids for 1 items"),
        (lambda: fm.data.from_torch([(1, 2)], clients={"a": [1]}), "client 'a' has 1; accepted are positions"),
        (lambda: fm.data.from_leaf("nowhere.json"), "'nowhere.json' cannot be read"),
        (lambda: fm.data.from_csv("nowhere.csv", by="u"), "'nowhere.csv' cannot be read"),
        (lambda: fm.data.from_arrays({"a": {"x": [1, 2]}}, pad={"x": Pad(3)}), r"example 0 has shape \(\); only seq"),
        (lambda: fm.data.from_arrays({"a": {"x": ["ab"]}}, pad={"x": Pad(3)}), "field 'x' holds text; only sequences"),
        (lambda: fm.data.from_arrays({"a": {"x": [[1]]}}, pad={"y": Pad(3)}), "no field 'y', which pad names"),
    ],
)
def test_what_is_wrong_is_one_line_with_its_place(call: Callable[[], object], words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: fm.data.from_pandas([1], by="u"), "frame must be a pandas.DataFrame, got list"),
        (lambda: fm.data.from_huggingface([1], by="u"), "dataset must be a datasets.Dataset .*, got list"),
        (lambda: fm.data.from_huggingface(datasets.DatasetDict(), by="u"), "split='train' is no split"),
        (
            lambda: fm.data.from_huggingface(datasets.Dataset.from_dict({"u": [1]}).to_iterable_dataset(), by="u"),
            "without streaming=True, got IterableDataset",
        ),
        (lambda: fm.data.from_torch([(1, 2)]), "give by or clients"),
        (lambda: fm.data.from_pandas(frame(), by="u", pad={"x": 3}), r"pad\['x'\] must be an fm.data.Pad, got 3"),
        (lambda: fm.data.from_pandas(frame(), by="u", dtypes={"z": int}), "dtypes names field 'z'; accepted are 'x'"),
        (lambda: Pad(0), "length must be a positive integer, got 0"),
        (lambda: Pad(3, value="x"), "value must be a number, got 'x'"),  # pyright: ignore[reportArgumentType]
        (lambda: fm.data.from_arrays({"a": {"x": [[1]]}}, pad={"x": Pad(2, 0.5)}), "that int64 can hold, got 0.5"),
    ],
)
def test_bad_arguments(call: Callable[[], object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        call()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("u,x\na,1\nb\n", "line 3 has 1 cells; the header names 2 columns"),
        ("u,x\na,1\n\nb,\n", r"column 'x', line 4 is missing \(''\)"),
        ("u,x\na,1\nb,NA\n", "column 'x', line 3 holds 'NA'; the column holds numbers"),
        ("u,x\na,nan\n", "column 'x', line 2 is missing .nan."),
        ("u,u\na,1\n", "column 'u' twice"),
        ("", "is empty"),
    ],
)
def test_faulty_csv_files(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text(text)
    with pytest.raises(DataError, match=words):
        fm.data.from_csv(tmp_path / "f.csv", by="u")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_samples": [2]}, "user 'a', field 'x' has 1 examples; num_samples says 2"),
        ({"num_samples": [1, 1]}, "1 users but 2 num_samples"),
        ({"users": ["b"]}, "user 'a' is missing in 'users'"),
        ({"users": "a"}, "'users' must be a list, got 'a'"),
        ({"user_data": {"a": {"x": [[float("nan")]], "y": [1]}}}, "user 'a', field 'x', example 0 holds nan"),
        ({"user_data": {"a": {"x": [None], "y": [1]}}}, "user 'a', field 'x', example 0 is missing"),
        ({"user_data": {"a": {}}}, "user 'a' holds {}"),
    ],
)
def test_faulty_leaf_files(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    good = {"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [[1.5]], "y": [1]}}}
    (tmp_path / "f.json").write_text(json.dumps(good))
    assert fm.data.from_leaf(tmp_path / "f.json").sizes.tolist() == [1]
    with pytest.raises(DataError, match="user 'a' appears twice"):
        fm.data.from_leaf([tmp_path / "f.json", tmp_path])
    (tmp_path / "f.json").write_text(json.dumps(good | change))
    with pytest.raises(DataError, match=words):
        fm.data.from_leaf(tmp_path)
    (tmp_path / "f.json").write_text("{")
    with pytest.raises(DataError, match="is no JSON"):
        fm.data.from_leaf(tmp_path)


def test_leaf_users_without_examples_stay(tmp_path: Path) -> None:
    data = {"a": {"x": [], "y": []}, "b": {"x": [[1.5]], "y": [1]}}
    (tmp_path / "f.json").write_text(json.dumps({"users": ["b", "a"], "num_samples": [1, 0], "user_data": data}))
    population = fm.data.from_leaf(tmp_path)
    assert (list(population.ids), population.sizes.tolist()) == (["a", "b"], [0, 1])


def test_padded_positions_count_neither_in_loss_nor_in_metrics() -> None:
    import jax

    rng = np.random.default_rng(0)
    sequences = [rng.integers(1, 9, length) for length in (4, 7, 7)]
    told = {"x": [s[:-1] for s in sequences], "y": [s[1:] for s in sequences]}
    problem = fm.models.char_lstm(vocabulary=9, embedding=4, hidden=8)
    params = problem.init(jax.random.key(0))
    rule = {"x": Pad(10), "y": Pad(10)}
    batch = fm.data.from_arrays({"a": told}, pad=rule).client("a")
    problem.check(batch)
    found = problem.loss(params, batch, jax.random.key(0))
    metrics = problem.metrics(params, batch)
    for row in range(3):
        single = {field: values[row][None] for field, values in told.items()}
        np.testing.assert_allclose(found[row], problem.loss(params, single, jax.random.key(0))[0], rtol=1e-5)
        for name, (values, weights) in problem.metrics(params, single).items():
            np.testing.assert_allclose(metrics[name][0][row], values[0], rtol=1e-5)
            assert metrics[name][1][row] == weights[0] == len(told["y"][row])
