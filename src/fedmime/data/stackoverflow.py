"""Stack Overflow by user: sentences as sequences of 20 words, each predicting the next one."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from fedmime.data import catalog, tokens
from fedmime.data.checksums import require
from fedmime.data.limits import DEFAULT, Limits
from fedmime.data.population import Columns, Population
from fedmime.data.store import from_store
from fedmime.data.views import capped, mapped
from fedmime.errors import ConfigError, DataError
from fedmime.files import sha256_of

WORD_COUNT = "stackoverflow.word_count"


def stackoverflow(
    data_dir: str | os.PathLike[str] | None = None,
    vocabulary: int = 10_000,
    length: int = 20,
    max_sentences: int | None = 1000,
    sample: int | None = None,
    test_examples: int | None = 10_000,
    test_split: str = "test",
    seed: int = 0,
    limits: Limits = DEFAULT,
) -> Population:
    """The published Stack Overflow files in `data_dir` as `x` and `y` of shape [n, length].

    The vocabulary is the most frequent words of `stackoverflow.word_count`. A sentence is its first `length` words,
    begun by a mark and, if it is shorter, ended by one. Of each user the first `max_sentences` are kept, and if
    `sample` is given so many of them, drawn by `seed`. The pooled test set is the first `test_examples` of the test
    users, who are all in `test_clients`. Accuracy leaves out padding, unknown words and end marks (`left_out`).
    Reference: Reddi et al., 2020, appendix C, https://arxiv.org/abs/2003.00295
    """
    numbers = (("vocabulary", vocabulary), ("length", length), ("max_sentences", max_sentences))
    for label, value in (*numbers, ("sample", sample), ("test_examples", test_examples)):
        if value is None and label not in ("vocabulary", "length"):
            continue
        if not isinstance(value, int) or value < 1:
            raise ConfigError(f"stackoverflow: {label} must be a positive integer, got {value!r}")
    directory = catalog.data_directory(data_dir)
    store = directory / store_name(vocabulary, length, max_sentences, sample, seed)
    if store.is_dir():
        return from_store(store)
    dataset = catalog.published("stackoverflow")
    words = read_words(directory / WORD_COUNT, vocabulary)
    recipe = f"stackoverflow vocabulary={vocabulary} length={length} words={sha256_of(directory / WORD_COUNT)}"
    test = prepare(catalog.load(dataset, test_split, directory, ("tokens",), limits), words, length, recipe)
    raw = catalog.load(dataset, "train", directory, ("tokens",), limits)
    if max_sentences is not None or sample is not None:
        raw = capped(raw, max_sentences or int(raw.sizes.max(initial=1)), sample, seed)
    found = prepare(raw, words, length, recipe, test, test_examples)
    asked = (vocabulary, length, max_sentences, sample, test_examples, test_split, seed, limits)
    return catalog.opened(found, "stackoverflow", data_dir, *asked)


def store_name(vocabulary: int, length: int, max_sentences: int | None, sample: int | None, seed: int) -> str:
    """What `data convert` calls the store of a preparation, so that it is found again."""
    drawn = "" if sample is None else f"-{sample}of{seed}"
    return f"stackoverflow-{vocabulary}-{length}-{max_sentences or 'all'}{drawn}.store"


def left_out(vocabulary: int = 10_000) -> tuple[int, ...]:
    """The targets that the accuracy does not count: padding, unknown words, end of sentence."""
    marks = tokens.special(vocabulary)
    return (marks.pad, marks.oov, marks.eos)


def read_words(path: Path, vocabulary: int) -> dict[bytes, int]:
    """The ids, from 1, of the most frequent words in a `word count` file sorted by count."""
    words: dict[bytes, int] = {}
    if not path.is_file():
        raise DataError(f"no file {str(path)!r}; run `fedmime data fetch stackoverflow` or pass data_dir")
    with require(path).open("rb") as file:
        for number, line in enumerate(file, 1):
            parts = line.rstrip(b"\r\n").rsplit(b" ", 1)
            if len(parts) != 2 or not parts[1].isdigit() or parts[0] in words:
                raise DataError(f"{str(path)!r}: line {number} is {line[:40]!r}; expected a new word and its count")
            words[parts[0]] = number
            if number == vocabulary:
                return words
    raise ConfigError(f"vocabulary={vocabulary} exceeds the {len(words)} words in {str(path)!r}")


def prepare(
    raw: Population,
    words: dict[bytes, int],
    length: int,
    recipe: str,
    test_clients: Population | None = None,
    test_examples: int | None = None,
) -> Population:
    """The training columns of clients as published, encoded as they are read."""
    if "tokens" not in raw.fields or not raw.fields["tokens"].text:
        raise DataError(f"{raw.name}: fields are {sorted(raw.fields)}; expected 'tokens', byte strings")
    test = None
    if test_clients is not None and test_examples is not None:
        recipe += f" test_examples={test_examples}"
        test = lambda: first(test_clients, test_examples)
    return mapped(
        raw,
        "stackoverflow",
        tokens.fields(length),
        lambda columns, _: encode(columns["tokens"], words, length),
        recipe,
        test=test,
        test_clients=test_clients,
    )


def encode(sentences: np.ndarray, words: dict[bytes, int], length: int = 20) -> Columns:
    """One client's sentences as input and target sequences."""
    marks = tokens.special(len(words))
    flat = np.full((len(sentences), length + 1), marks.pad, np.int32)
    for row, sentence in zip(flat, sentences, strict=True):
        ids = [marks.bos, *(words.get(word, marks.oov) for word in sentence.split(b" ", length)[:length]), marks.eos]
        row[: len(ids)] = ids[: length + 1]
    return tokens.next_token(flat)


def first(population: Population, examples: int) -> Columns:
    """The first examples of a population, in client order."""
    ends = np.cumsum(population.sizes)
    count = min(int(np.searchsorted(ends, examples)) + 1, len(population))
    parts = [population.client_at(i) for i in range(count)]
    return {name: np.concatenate([part[name] for part in parts])[:examples] for name in population.fields}
