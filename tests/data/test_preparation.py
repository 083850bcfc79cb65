"""Published examples become training columns exactly as the paper's predecessor did it."""

from pathlib import Path

import numpy as np
import pytest

from data.published import images, sentences, texts, write_fedjax, write_hdf5, write_tff_sqlite
from fedmime.data import emnist, shakespeare, stackoverflow, tokens
from fedmime.data.shakespeare import LEFT_OUT, SPECIAL, VOCABULARY, VOCABULARY_SIZE, decode, encode
from fedmime.data.stackoverflow import left_out
from fedmime.errors import ConfigError, DataError

TRAIN, TEST = images({"a": 3, "b": 2}, 1), images({"a": 1, "c": 2}, 2)


def write(folder: Path, kind: str) -> Path:
    folder.mkdir()
    if kind == "hdf5":
        write_hdf5(folder / "fed_emnist_train.h5", TRAIN)
        write_hdf5(folder / "fed_emnist_test.h5", TEST)
    elif kind == "tff":
        write_tff_sqlite(folder / "emnist_all.sqlite", {"all_train": TRAIN, "all_test": TEST})
    else:
        write_fedjax(folder / "federated_emnist_train.sqlite", TRAIN)
        write_fedjax(folder / "federated_emnist_test.sqlite", TEST)
    return folder


@pytest.mark.parametrize("kind", ["hdf5", "tff", "fedjax"])
def test_emnist_is_inverted_whatever_the_format(kind: str, tmp_path: Path) -> None:
    population = emnist(write(tmp_path / kind, kind))
    assert list(population.ids) == ["a", "b"]
    x, y = population.client("b")["x"], population.client("b")["y"]
    assert (x.shape, x.dtype, y.dtype) == ((2, 28, 28, 1), np.float32, np.int32)
    np.testing.assert_array_equal(x, 1 - TRAIN["b"]["pixels"][..., None])
    np.testing.assert_array_equal(y, TRAIN["b"]["label"])
    assert population.test is not None
    np.testing.assert_array_equal(population.test["y"], np.concatenate([TEST["a"]["label"], TEST["c"]["label"]]))
    assert population.test_clients is not None
    assert list(population.test_clients.ids) == ["a", "c"]


def test_a_missing_data_set_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no test file .* looked for fed_emnist_test\.h5, .*fedmime data fetch emnist"):
        emnist(tmp_path)


def test_characters_have_the_published_ids() -> None:
    assert len(VOCABULARY) == 86
    assert len(set(VOCABULARY)) == 86
    assert SPECIAL == (0, 87, 88, 89)
    assert VOCABULARY_SIZE == 90
    x = encode(np.array([b"dh\r~"], object), length=5)["x"]
    assert x.tolist() == [[88, 1, 2, 86, 87]]


def test_speeches_are_cut_and_shifted() -> None:
    columns = encode(np.array([b"dddd", b"h"], object), length=3)
    # begin d d d | d end pad pad | begin h end pad: each row of four gives three inputs and three targets.
    assert columns["x"].tolist() == [[88, 1, 1], [1, 89, 0], [88, 2, 89]]
    assert columns["y"].tolist() == [[1, 1, 1], [89, 0, 0], [2, 89, 0]]
    assert decode(columns["x"][0]) == b"dd"


@pytest.mark.parametrize(("length", "rows"), [(79, 1), (80, 2), (160, 2), (161, 3)])
def test_rows_of_a_speech(length: int, rows: int) -> None:
    columns = encode(np.array([b"x" * length], object))
    assert columns["x"].shape == columns["y"].shape == (rows, 80)
    assert columns["x"].dtype == np.int32


def test_shakespeare_population(tmp_path: Path) -> None:
    write_hdf5(tmp_path / "shakespeare_train.h5", texts(A=[b"x" * 100, b"y"], B=[b"z"]))
    write_hdf5(tmp_path / "shakespeare_test.h5", texts(A=[b"end"]))
    population = shakespeare(tmp_path)
    assert population.sizes.tolist() == [3, 1]
    assert population.fields["x"].shape == (80,)
    assert population.test is not None
    assert len(population.test["x"]) == 1
    with pytest.raises(ConfigError, match="length must be a positive integer, got 0"):
        shakespeare(tmp_path, length=0)


@pytest.fixture
def overflow(tmp_path: Path) -> Path:
    (tmp_path / "stackoverflow.word_count").write_bytes(b"the 90\na 50\nof 30\nrare 1\n")
    many = [b"the a"] * 5
    train = sentences(u1=[b"the of what", b"a a a a a a"], u2=many)
    write_hdf5(tmp_path / "stackoverflow_train.h5", train)
    write_hdf5(tmp_path / "stackoverflow_test.h5", sentences(t1=[b"of"], t2=[b"a", b"the"]))
    write_hdf5(tmp_path / "stackoverflow_held_out.h5", sentences(h=[b"a"]))
    return tmp_path


def test_sentences_are_cut_marked_and_shifted(overflow: Path) -> None:
    population = stackoverflow(overflow, vocabulary=3, length=4)
    pad, oov, bos, eos = tokens.special(3)
    assert (pad, oov, bos, eos) == (0, 4, 5, 6)
    assert tokens.size(3) == 7
    columns = population.client("u1")
    # A sentence that fills the row has no end mark.
    assert columns["x"].tolist() == [[bos, 1, 3, oov], [bos, 2, 2, 2]]
    assert columns["y"].tolist() == [[1, 3, oov, eos], [2, 2, 2, 2]]
    assert population.test is not None
    assert population.test["x"][:, :3].tolist() == [[bos, 3, eos], [bos, 2, eos], [bos, 1, eos]]


def test_sentences_are_capped_and_drawn(overflow: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert stackoverflow(overflow, vocabulary=3, max_sentences=3).sizes.tolist() == [2, 3]
    assert "1 of 2 clients capped at 3 examples" in caplog.text
    drawn = stackoverflow(overflow, vocabulary=3, sample=1, seed=5)
    assert drawn.sizes.tolist() == [1, 1]
    assert len(drawn.client("u2")["x"]) == 1
    assert stackoverflow(overflow, vocabulary=3, max_sentences=None).sizes.tolist() == [2, 5]
    short = stackoverflow(overflow, vocabulary=3, test_examples=2)
    assert short.test is not None
    assert len(short.test["x"]) == 2
    held = stackoverflow(overflow, vocabulary=3, test_split="held_out").test
    assert held is not None
    assert len(held["x"]) == 1


def test_vocabulary_size_is_selectable_up_to_what_there_is(overflow: Path) -> None:
    assert stackoverflow(overflow, vocabulary=2, length=4).client("u1")["x"][0].tolist() == [4, 1, 3, 3]
    with pytest.raises(ConfigError, match="vocabulary=5 exceeds the 4 words"):
        stackoverflow(overflow, vocabulary=5)
    (overflow / "stackoverflow.word_count").write_bytes(b"the 90\nthe 2\n")
    with pytest.raises(DataError, match="line 2 is"):
        stackoverflow(overflow, vocabulary=2)


def test_accuracy_leaves_out_what_it_should() -> None:
    pad, oov, _, eos = tokens.special(10)
    y = np.array([[1, oov, eos, pad], [2, 3, 4, 5]])
    right = y.copy()
    right[0, 0] = 9
    assert left_out(10) == (pad, oov, eos)
    assert tokens.accuracy(right, y, left_out(10)) == pytest.approx(4 / 5)
    assert tokens.accuracy(right, y, LEFT_OUT) == pytest.approx(6 / 7)
    assert np.isnan(tokens.accuracy(y[:1, 3:], y[:1, 3:], LEFT_OUT))
