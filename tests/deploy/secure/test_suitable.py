"""What does not go with masked sums is refused in one line, before a run begins."""

from __future__ import annotations

import math

import jax
import pytest

import fedmime as fm
from fedmime.aggregation import chain, clip, error_feedback, gaussian, median, quantize, random_k, top_k
from fedmime.aggregation.aggregator import Aggregator
from fedmime.algorithms.algorithm import Algorithm
from fedmime.deploy.layout import layout_of
from fedmime.deploy.secure import primitives, suitable
from fedmime.deploy.secure.options import SecureSum
from fedmime.deploy.secure.suitable import check_run, check_terms
from fedmime.deploy.terms import terms_of
from fedmime.errors import ConfigError

CLIPPED = chain(clip(1.0))
MIME = fm.algorithms.mime(fm.optimizers.momentum(beta=0.9), eta=0.1)


def test_clipped_and_private_sums_are_accepted() -> None:
    pytest.importorskip("flwr")
    for aggregator in (CLIPPED, chain(clip(1.0, gradient=3.0), down=quantize(8)), chain(gaussian(1.0, 0.5, 1e-5))):
        check_run(SecureSum(), MIME, aggregator, 10)


@pytest.mark.parametrize(
    ("aggregator", "words"),
    [
        (chain(), "messages must have a finite norm"),
        (chain(clip(1.0, gradient=math.inf)), "messages must have a finite norm"),
        (chain(clip(1.0), clip(2.0)), "messages must have a finite norm"),
        (chain(clip(1.0), median()), "clipped and added and nothing else, got Median"),
        (chain(clip(1.0), quantize(8)), "got Quantize"),
        (chain(random_k(0.5)), "got RandomK"),
        (error_feedback(top_k(0.5)), "got TopK"),
    ],
)
def test_aggregators_that_need_single_messages_are_refused(aggregator: Aggregator, words: str) -> None:
    pytest.importorskip("flwr")
    with pytest.raises(ConfigError, match=words):
        check_run(SecureSum(), MIME, aggregator, 10)


def test_an_algorithm_that_draws_one_clients_iterate_is_refused() -> None:
    pytest.importorskip("flwr")
    mvr: Algorithm = fm.algorithms.mime_mvr(eta=0.1, beta=0.9, output="random")
    with pytest.raises(ConfigError, match="MimeMVR draws the iterate of one client"):
        check_run(SecureSum(), mvr, CLIPPED, 10)


def test_halves_of_a_cohort_are_groups_of_their_own() -> None:
    pytest.importorskip("flwr")
    split = fm.algorithms.mime(fm.optimizers.momentum(beta=0.9), eta=0.1, split=True)
    check_run(SecureSum(), split, CLIPPED, 6)
    with pytest.raises(ConfigError, match=r"a group must have 3 to .* got 2"):
        check_run(SecureSum(), split, CLIPPED, 5)


@pytest.mark.parametrize("hidden", [64, 512])
def test_more_entries_than_bits_can_tell_are_refused(hidden: int) -> None:
    pytest.importorskip("flwr")
    problem = fm.models.mlp(input_shape=(8, 8, 1), classes=10, hidden=(hidden,))
    for bits, refused in ((8, True), (10, hidden == 512), (20, False)):
        terms = terms_of(MIME, CLIPPED, problem, secure=SecureSum(bits))
        if refused:
            with pytest.raises(ConfigError, match=f"secure: bits must be larger, got {bits}; give more bits for"):
                check_terms(terms, 10)
        else:
            check_terms(terms, 10)


def test_messages_of_other_numbers_are_refused_before_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flwr")
    problem = fm.models.logistic(input_shape=(8, 8, 1), classes=10)
    whole = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, "int32"), terms_of(MIME, CLIPPED, problem).model)
    terms = terms_of(MIME, CLIPPED, problem, secure=SecureSum())
    check_terms(terms, 10)
    layout = layout_of(MIME, terms.model)
    monkeypatch.setattr(
        suitable,
        "layout_of",
        lambda *_: layout._replace(gradient=layout.gradient._replace(shapes=jax.tree.leaves(whole))),
    )
    with pytest.raises(ConfigError, match="secure: messages must hold floating-point numbers, got an array of int32"):
        check_terms(terms, 10)


def test_without_flower_nothing_is_sent_in_the_clear_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "flwr", None)
    for name in [name for name in sys.modules if name.startswith("flwr.")]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=r"masks need Flower's primitives: pip install 'fedmime\[deploy\]'"):
        primitives.check_installed()
