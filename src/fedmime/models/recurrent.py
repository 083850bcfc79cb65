"""Next-token models: characters (Shakespeare) and words (StackOverflow).

An embedding, LSTM layers and a dense layer predict the next token at every position. Sequences are padded with token 0,
which counts neither in the loss nor in the metrics.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from fedmime.errors import ConfigError
from fedmime.models import arguments, checks, initialisers, layers, sequences
from fedmime.models.classification import Metrics
from fedmime.models.problem import Batch, Params, Problem
from fedmime.validation import count

CHUNK = 20  # sequences of a full gradient at a time: their activations over all time steps are large


def char_lstm(
    vocabulary: int = 90, embedding: int = 8, hidden: int = 256, layers: int = 1, ignore: Any = (sequences.PAD,)
) -> Problem:
    """Embedding, LSTM layers, a dense layer to the next character at every position.

    Args:
        vocabulary: number of token ids. By default these are the 86 characters of the federated Shakespeare data, with
            pad = 0 before them and oov, bos and eos after them.
        embedding: width of the embedding.
        hidden: units of each LSTM layer.
        layers: number of LSTM layers; 2 is the model of the earlier literature.
        ignore: targets that do not count in the accuracy; pad never counts.
    """
    return _lstm("char_lstm", *_sizes("char_lstm", vocabulary, embedding, hidden, layers, ignore), False)


def word_lstm(
    vocabulary: int = 10004,
    embedding: int = 96,
    hidden: int = 670,
    layers: int = 1,
    ignore: Any = None,
) -> Problem:
    """Embedding, LSTM layers each followed by a dense projection to the embedding size, a dense layer to the next word.

    Args:
        vocabulary: number of token ids. By default 10,000 words with the ids 1 to 10,000, pad = 0, and after the words
            oov = 10,001, bos = 10,002, eos = 10,003, as `fedmime.data.stackoverflow` gives them.
        embedding: width of the embedding and of the projections.
        hidden: units of each LSTM layer.
        layers: number of LSTM layers.
        ignore: targets that do not count in the accuracy; None means pad, oov and eos at these places. If your ids
            differ, name them; pad is always 0.

    Reference: Reddi et al., 2020, Adaptive Federated Optimization, https://arxiv.org/abs/2003.00295
    """
    words = count("word_lstm", "vocabulary", vocabulary, least=5)
    marks = (sequences.PAD, words - 3, words - 1) if ignore is None else ignore
    return _lstm("word_lstm", *_sizes("word_lstm", words, embedding, hidden, layers, marks), True)


def _sizes(
    model: str, vocabulary: Any, embedding: Any, hidden: Any, depth: Any, ignore: Any
) -> tuple[int, int, int, int, tuple[int, ...]]:
    """The checked sizes of a model, and the ignored tokens with pad among them, sorted."""
    words = count(model, "vocabulary", vocabulary, least=2)
    left_out = arguments.wholes(model, "ignore", ignore, least=0)
    if max(left_out, default=0) >= words:
        raise ConfigError(f"{model}: ignore must hold token ids below vocabulary={words}, got {ignore!r}")
    return (
        words,
        count(model, "embedding", embedding, least=1),
        count(model, "hidden", hidden, least=1),
        count(model, "layers", depth, least=1),
        tuple(sorted({sequences.PAD, *left_out})),
    )


@functools.cache
def _lstm(
    name: str, vocabulary: int, embedding: int, hidden: int, depth: int, ignore: tuple[int, ...], project: bool
) -> Problem:
    """Build the problem. The same arguments return the same object, so that its compiled programs are reused.

    Args:
        depth: number of LSTM layers.
        project: whether each of them is followed by a dense layer to the embedding size.
    """

    @jax.jit
    def init(key: jax.Array) -> Params:
        first, last, *keys = jax.random.split(key, 2 + depth)
        width = embedding
        params: Params = {"embedding": initialisers.uniform(first, (vocabulary, embedding), 0.05)}
        for i in range(depth):
            inner, outer = jax.random.split(keys[i])
            params[f"lstm{i}"] = initialisers.lstm(inner, width, hidden)
            width = embedding if project else hidden
            if project:
                params[f"project{i}"] = initialisers.dense(outer, hidden, embedding)
        return params | {"dense": initialisers.dense(last, width, vocabulary)}

    def logits(params: Params, tokens: jax.Array) -> jax.Array:
        """Logits [time, batch, vocabulary] for tokens [batch, time].

        Time is the first axis, so that each step of the loops over it reads consecutive memory.
        """
        a = layers.embedding(tokens.T, params["embedding"])
        for i in range(depth):
            a = layers.lstm(a, **params[f"lstm{i}"])
            if project:
                a = layers.dense(a, **params[f"project{i}"])
        return layers.dense(a, **params["dense"])

    def loss(params: Params, batch: Batch, key: jax.Array) -> jax.Array:
        return sequences.loss(logits(params, batch["x"]), batch["y"].T)

    def measure(params: Params, batch: Batch) -> Metrics:
        return sequences.metrics(logits(params, batch["x"]), batch["y"].T, ignore)

    def check(fields: Mapping[str, np.ndarray]) -> None:
        checks.tokens(name, fields, vocabulary)

    return Problem(name, init, loss, measure, check, chunk=CHUNK)
