"""From the options of a setting to an aggregator: what happens to messages on their way."""

from __future__ import annotations

from fedmime import aggregation
from fedmime.aggregation import Aggregation
from fedmime.errors import ConfigError
from fedmime.experiments.setting import Messages, Setting


def aggregator(setting: Setting) -> Aggregation | None:
    """The aggregator that a setting asks for; None if nothing happens to its messages."""
    m = setting.aggregation
    if m == Messages():
        return None
    _check(m)
    steps: list[Aggregation | None] = [
        _clipping(m),
        None if m.attack is None else aggregation.attack(m.attack, m.attackers, m.attack_scale),
        None if m.random_k is None else aggregation.random_k(m.random_k),
        None if m.top_k is None else aggregation.top_k(m.top_k),
        None if m.low_rank is None else aggregation.low_rank(m.low_rank),
        None if m.quantize is None else aggregation.quantize(m.quantize, m.rotate),
        _combiner(setting),
    ]
    down = None if m.quantize_down is None else aggregation.quantize(m.quantize_down)
    found = aggregation.chain(*(step for step in steps if step is not None), down=down)
    return aggregation.error_feedback(found) if m.error_feedback else found


def _clipping(m: Messages) -> Aggregation | None:
    """Clipping alone, or with noise."""
    if m.clip is None:
        return None
    if m.noise is None and m.epsilon is None:
        return aggregation.clip(m.clip, m.clip_gradient)
    return aggregation.gaussian(
        m.clip, m.noise, m.delta, gradient_clip=m.clip_gradient, target_epsilon=m.epsilon, quantile=m.quantile
    )


def _combiner(setting: Setting) -> Aggregation:
    m = setting.aggregation
    if m.combine == "trimmed_mean":
        return aggregation.trimmed_mean(m.trim)
    if m.combine == "krum":
        return aggregation.krum(int(m.trim * (setting.cohort or 0)))
    return getattr(aggregation, m.combine)()


def _check(m: Messages) -> None:
    """Refuse options that have no effect because another one is missing."""
    private = m.noise is not None or m.epsilon is not None
    needs = (
        ("noise", m.noise is not None, "clip", m.clip),
        ("epsilon", m.epsilon is not None, "clip", m.clip),
        ("clip_gradient", m.clip_gradient is not None, "clip", m.clip),
        ("quantile", m.quantile is not None, "noise or epsilon", private or None),
        ("rotate", m.rotate, "quantize", m.quantize),
        ("attack_scale", m.attack_scale is not None, "attack", m.attack),
    )
    for name, given, other, there in needs:
        if given and there is None:
            raise ConfigError(f"setting: aggregation.{name} needs aggregation.{other}, too")


def label(setting: Setting) -> str:
    """What is added to a method's name: its compression, privacy, robustness and attack, or nothing."""
    m = setting.aggregation
    words = [
        f"{m.quantize} bits" if m.quantize is not None else "",
        f"{m.quantize_down} bits down" if m.quantize_down not in (None, m.quantize) else "",
        f"random-k {m.random_k:g}" if m.random_k is not None else "",
        f"top-k {m.top_k:g}" if m.top_k is not None else "",
        f"rank {m.low_rank}" if m.low_rank is not None else "",
        f"clip {m.clip:g}" if m.clip is not None and m.noise is None and m.epsilon is None else "",
        f"noise {m.noise:g}" if m.noise is not None else "",
        f"epsilon {m.epsilon:g}" if m.epsilon is not None else "",
        m.combine.replace("_", " ") if m.combine != "mean" else "",
        f"under {m.attack.replace('_', ' ')}" if m.attack is not None else "",
    ]
    return "".join(f" {word}" for word in words if word)
