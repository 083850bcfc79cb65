"""Chains: the order of their steps, steps that change nothing, and steps that do not go together."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedmime as fm
from fedmime.aggregation.aggregator import PLAIN, sender_of
from fedmime.aggregation.encoder import UPDATE

g = fm.aggregation


def test_encoders_act_in_the_order_in_which_they_are_given() -> None:
    clipped_first, sparse_first = g.chain(g.clip(1.0), g.top_k(0.25)), g.chain(g.top_k(0.25), g.clip(1.0))
    message = {"w": jnp.array([[4.0, 3.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]])}
    sender = sender_of(UPDATE, jax.random.key(0), 0)
    norms = [np.linalg.norm(one.transmit(message, (), sender)[0]["w"]) for one in (clipped_first, sparse_first)]
    assert norms == [pytest.approx(5 / math.sqrt(31)), pytest.approx(1.0)]


def test_chains_of_chains_are_one_chain() -> None:
    parts = g.clip(2.0), g.top_k(0.5), g.quantize(4)
    flat = g.chain(*parts, g.median(), down=g.quantize(8))
    assert g.chain(g.chain(parts[0]), g.chain(*parts[1:], g.median()), down=g.quantize(8)) == flat
    assert g.chain(flat) == flat
    assert [type(one).__name__ for one in flat.encoders] == ["Clip", "TopK", "Quantize"]
    assert g.chain() == g.chain(g.mean()) == PLAIN


def test_what_changes_nothing_is_left_out() -> None:
    noiseless = g.gaussian(math.inf, 0)
    nothing = g.clip(math.inf), g.quantize(32), g.random_k(1.0), g.top_k(1.0), g.trimmed_mean(0), noiseless
    for part in nothing:
        assert g.chain(part) == PLAIN
    assert g.chain(*nothing[:-1], down=g.quantize(32)) == PLAIN
    assert not PLAIN.by_client
    assert g.chain(g.gaussian(1.0, 0)).encoders == (g.clip(1.0),)


NOISE = g.gaussian(1.0, 1.0)
REFUSALS = {
    "foreign": (lambda: g.chain(8), "chain: parts must come from fm.aggregation, got 8"),  # pyright: ignore
    "a factory": (lambda: g.chain(g.quantize), "chain: parts must come from fm.aggregation"),  # pyright: ignore
    "two combiners": (lambda: g.chain(g.median(), g.krum(1)), "chain: give one combiner, got Median, Krum"),
    "quantize first": (lambda: g.chain(g.quantize(8), g.clip(1.0)), "chain: quantize must be the last encoder"),
    "quantize twice": (lambda: g.chain(g.quantize(8), g.quantize(4)), "chain: quantize must be the last encoder"),
    "attack on integers": (lambda: g.chain(g.quantize(8), g.attack("nan")), "chain: quantize must be the last"),
    "two noises": (lambda: g.chain(NOISE, NOISE), "chain: gaussian bounds what one client changes"),
    "noise and clip": (lambda: g.chain(g.clip(1.0), NOISE), "which does not go with another gaussian, another clip"),
    "noise and median": (lambda: g.chain(NOISE, g.median()), "or a combiner other than mean"),
    "noise and feedback": (lambda: g.chain(g.error_feedback(g.top_k(0.1)), NOISE), "error_feedback"),
    "feedback of noise": (lambda: g.chain(g.error_feedback(g.chain(NOISE))), "error_feedback"),
    "two downs": (lambda: g.chain(g.chain(down=g.quantize(8)), down=g.quantize(8)), "broadcasts take one quantizer"),
    "sparse down": (lambda: g.chain(down=g.top_k(0.1)), "chain: down must come from quantize"),
    "a number down": (lambda: g.chain(down=8), "chain: down must come from quantize"),  # pyright: ignore
    "random feedback": (lambda: g.error_feedback(g.random_k(0.1)), "error_feedback: the error of random_k"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals_in_one_clear_line(name: str) -> None:
    make, words = REFUSALS[name]
    with pytest.raises(fm.ConfigError) as refusal:
        make()
    said = str(refusal.value)
    assert words in said
    assert "\n" not in said
    assert len(said) < 200
