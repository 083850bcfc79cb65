"""Which runs masked sums can serve: those that need nothing of a client but its part of a sum."""

from __future__ import annotations

import math

from fedmime.aggregation.aggregator import Aggregator
from fedmime.aggregation.clipping import Clip
from fedmime.algorithms.algorithm import Algorithm
from fedmime.deploy.layout import layout_of
from fedmime.deploy.secure import primitives
from fedmime.deploy.secure.contents import check_layout, parts_of
from fedmime.deploy.secure.fixed_point import shortened
from fedmime.deploy.secure.options import SecureSum
from fedmime.deploy.terms import Terms
from fedmime.errors import ConfigError


def check_terms(terms: Terms, cohort_size: int) -> None:
    """Refuse a secure run that cannot be carried out, before it begins; nothing is wrong with one without masks.

    Args:
        cohort_size: how many clients are asked in a round.

    Raises:
        ConfigError: see `check_run`; or messages hold other numbers, or more of them, than `SecureSum.bits` can tell.
    """
    if (options := terms.secure) is None:
        return
    check_run(options, terms.algorithm, terms.aggregator, cohort_size)
    layout = layout_of(terms.algorithm, terms.model)
    check_layout(layout)
    for part in parts_of(layout, terms.aggregator.at_round(0), 1, layout.update is not None, (1.0, 1.0)):
        shortened(part.norm, part.entries, options)


def check_run(options: SecureSum, algorithm: Algorithm, aggregator: Aggregator, cohort_size: int) -> None:
    """Refuse what does not go with masked sums, before a run begins.

    Args:
        cohort_size: how many clients are asked in a round.

    Raises:
        ConfigError: the algorithm or the aggregator needs single messages, messages have no bound, or groups are too
            small or too large.
    """
    primitives.check_installed()
    _check_aggregator(aggregator)
    if algorithm.draws:
        raise ConfigError(f"secure: {type(algorithm).__name__} draws the iterate of one client, which no sum hides")
    options.check_group(cohort_size // 2 if algorithm.split else cohort_size)


def _check_aggregator(aggregator: Aggregator) -> None:
    clips = [one for one in aggregator.encoders if isinstance(one, Clip)]
    others: list[object] = [one for one in aggregator.encoders if not isinstance(one, Clip)]
    if not aggregator.combiner.linear:
        others.append(aggregator.combiner)
    if others or aggregator.error_feedback:
        found = ", ".join(type(one).__name__ for one in others) or "error_feedback"
        raise ConfigError(f"secure: masked messages are clipped and added and nothing else, got {found}")
    if len(clips) != 1 or math.inf in (clips[0].norm, clips[0].gradient):
        wanted = "--aggregation.clip, or aggregation=fm.aggregation.clip(norm) or fm.aggregation.gaussian(…)"
        raise ConfigError(f"secure: messages must have a finite norm before they are masked; give {wanted}")
