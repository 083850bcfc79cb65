"""Shakespeare by role: speeches as sequences of 80 characters, each predicting the next one."""

from __future__ import annotations

import os

import numpy as np

from fedmime.data import catalog, tokens
from fedmime.data.arrays import in_memory
from fedmime.data.limits import DEFAULT, Limits
from fedmime.data.population import Columns, Population, describe
from fedmime.data.store import from_store
from fedmime.errors import ConfigError, DataError

# The order is that of the published models: characters get the ids 1 to 86.
VOCABULARY = b"dhlptx@DHLPTX $(,048cgkoswCGKOSW[_#'/37;?bfjnrvzBFJNRVZ\"&*.26:\naeimquyAEIMQUY]!%)-159\r"  # fmt: skip
SPECIAL = tokens.special(len(VOCABULARY))
VOCABULARY_SIZE = tokens.size(len(VOCABULARY))
LEFT_OUT = (SPECIAL.pad,)  # targets that the accuracy does not count

_TABLE = np.full(256, SPECIAL.oov, np.int32)
_TABLE[np.frombuffer(VOCABULARY, np.uint8)] = np.arange(1, len(VOCABULARY) + 1)


def shakespeare(
    data_dir: str | os.PathLike[str] | None = None, length: int = 80, limits: Limits = DEFAULT
) -> Population:
    """The published Shakespeare files in `data_dir` as `x` and `y` of shape [n, length].

    Each speech is begun and ended by marks, padded to a multiple of `length + 1` and cut; of each piece all but the
    last id is input and all but the first is target. Accuracy counts every target that is not padding (`LEFT_OUT`).
    Reference: Reddi et al., 2020, appendix C, https://arxiv.org/abs/2003.00295
    """
    if not isinstance(length, int) or length < 1:
        raise ConfigError(f"shakespeare: length must be a positive integer, got {length!r}")
    directory = catalog.data_directory(data_dir)
    if (directory / f"shakespeare-{length}.store").is_dir():
        return from_store(directory / f"shakespeare-{length}.store")
    dataset = catalog.published("shakespeare")
    test = prepare(catalog.load(dataset, "test", directory, ("snippets",), limits), length)
    return prepare(catalog.load(dataset, "train", directory, ("snippets",), limits), length, test)


def prepare(raw: Population, length: int = 80, test_clients: Population | None = None) -> Population:
    """The training columns of clients as published; the whole text is small enough to hold."""
    if "snippets" not in raw.fields or not raw.fields["snippets"].text:
        raise DataError(f"{raw.name}: fields are {sorted(raw.fields)}; expected 'snippets', byte strings")
    columns = {client: encode(raw.client_at(i)["snippets"], length) for i, client in enumerate(raw.ids)}
    identity = describe(f"shakespeare length={length}", raw.identity(), test_clients and test_clients.identity())
    return in_memory("shakespeare", columns, tokens.fields(length), None, test_clients, identity)


def encode(snippets: np.ndarray, length: int = 80) -> Columns:
    """One client's speeches as input and target sequences."""
    pieces = [encode_one(snippet, length + 1) for snippet in snippets]
    return tokens.next_token(np.concatenate(pieces) if pieces else np.empty((0, length + 1), np.int32))


def encode_one(snippet: bytes, length: int) -> np.ndarray:
    """One speech as rows of `length` ids: begin, characters, end, padding."""
    rows = -(-(len(snippet) + 2) // length)
    flat = np.full(rows * length, SPECIAL.pad, np.int32)
    flat[0] = SPECIAL.bos
    flat[1 : len(snippet) + 1] = _TABLE[np.frombuffer(snippet, np.uint8)]
    flat[len(snippet) + 1] = SPECIAL.eos
    return flat.reshape(rows, length)


def decode(ids: np.ndarray) -> bytes:
    """The characters of a sequence, marks left out and unknown ones as `?`."""
    known = VOCABULARY + b"?"
    return bytes(known[i - 1] for i in ids.tolist() if 0 < i <= len(known))
