"""Chains: one aggregator of several steps, and which steps go together."""

from __future__ import annotations

import dataclasses
from typing import Any

from fedmime.aggregation.aggregator import Aggregator
from fedmime.aggregation.clipping import Clip
from fedmime.aggregation.combiner import Combiner, Mean
from fedmime.aggregation.encoder import Encoder
from fedmime.aggregation.privacy import Gaussian
from fedmime.errors import ConfigError
from fedmime.validation import quote

Aggregation = Encoder | Combiner | Gaussian | Aggregator


def chain(*parts: Aggregation, down: Encoder | None = None) -> Aggregator:
    """One aggregator of several steps, in the order in which clients take them.

    >>> import fedmime as fm
    >>> fm.aggregation.chain(fm.aggregation.clip(1.0), fm.aggregation.quantize(bits=8)).by_client
    True

    Args:
        parts: encoders (`clip`, `quantize`, `random_k`, `top_k`, `low_rank`, `attack`), at most one combiner (`mean`,
            `median`, `trimmed_mean`, `geometric_median`, `krum`), and what `error_feedback` or `gaussian` return.
        down: a quantizer for what the server broadcasts; by default it goes uncompressed.
    """
    whole = [_single(part) for part in parts]
    encoders = tuple(one for part in whole for one in part.encoders)
    combiners = [part.combiner for part in whole if not isinstance(part.combiner, Mean)]
    noises = [part.privacy for part in whole if part.privacy is not None]
    downs = [one for part in whole for one in part.down] + ([] if down is None else [down])
    feedback = any(part.error_feedback for part in whole)
    _check(encoders, downs, combiners, noises, feedback)
    return Aggregator(
        tuple(one for one in encoders if not one.changes_nothing),
        tuple(one for one in downs if not one.changes_nothing),
        combiners[0] if combiners else Mean(),
        noises[0] if noises else None,
        feedback,
    )


def _single(part: Aggregation) -> Aggregator:
    """The aggregator of one step."""
    if isinstance(part, Aggregator):
        return part
    if isinstance(part, Encoder):
        return Aggregator(encoders=(part,))
    if isinstance(part, Combiner):
        return Aggregator(combiner=part)
    if isinstance(part, Gaussian):
        without = part.noise_multiplier == 0 and part.quantile is None  # no noise: the mean of clipped messages
        return Aggregator(encoders=(part.clipping(),), privacy=None if without else part)
    raise ConfigError(f"chain: parts must come from fm.aggregation, got {quote(part)}")


def _check(
    encoders: tuple[Encoder, ...], downs: list[Any], combiners: list[Combiner], noises: list[Gaussian], feedback: bool
) -> None:
    """Refuse steps that do not go together."""
    if len(combiners) > 1:
        raise ConfigError(f"chain: give one combiner, got {', '.join(type(c).__name__ for c in combiners)}")
    if noises and (len(noises) > 1 or combiners or feedback or sum(isinstance(one, Clip) for one in encoders) > 1):
        others = "another gaussian, another clip, error_feedback or a combiner other than mean"
        raise ConfigError(f"chain: gaussian bounds what one client changes, which does not go with {others}")
    if feedback and not all(one.compresses for one in encoders):
        raise ConfigError("chain: error_feedback keeps what compression loses; it does not go with clip or attack")
    if len(downs) > 1:
        raise ConfigError(f"chain: broadcasts take one quantizer, got {len(downs)}")
    if downs and not getattr(downs[0], "downward", False):
        raise ConfigError(f"chain: down must come from quantize, which keeps every entry of x, got {quote(downs[0])}")
    if any(one.last and not one.changes_nothing for one in encoders[:-1]):
        raise ConfigError("chain: quantize must be the last encoder: nothing can be made of its integers")


def error_feedback(encoder: Encoder | Aggregator) -> Aggregator:
    """Let every client add what the encoding of its update lost to its next update.

    A biased encoder such as `top_k` then loses nothing for good. It needs clients that keep a vector of the model's
    size between the rounds they take part in, as those of SCAFFOLD do. A stateless client has no error to feed back,
    nor has one that is seen once, as in a large population. Full gradients have none either: they belong to one point.

    The error must be shorter than the message, or it grows from round to round. That of `random_k` is not, because it
    multiplies what it sends to be unbiased; that of `quantize` with one or two bits may not be.

    Reference: Karimireddy et al., 2019, https://arxiv.org/abs/1901.09847
    """
    whole = chain(encoder)
    if any(one.amplifies for one in whole.encoders):
        raise ConfigError("error_feedback: the error of random_k, which is unbiased, would grow without end; use top_k")
    return dataclasses.replace(whole, error_feedback=True)
