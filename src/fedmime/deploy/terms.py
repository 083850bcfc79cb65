"""The terms of a run: what a server and its nodes must agree on before the first round.

A node that computed something slightly different would send sound numbers that mean another thing, and nobody would
notice. So both sides derive one digest of everything that decides what a client computes, and compare.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from fedmime import named
from fedmime.aggregation.aggregator import PLAIN, Aggregator
from fedmime.aggregation.chains import Aggregation, chain
from fedmime.algorithms.algorithm import Algorithm
from fedmime.deploy.messages import Hello, parameters_digest
from fedmime.deploy.secure.options import SecureSum, fields_of
from fedmime.engine.sampling import Schedule
from fedmime.errors import ConfigError
from fedmime.experiments import messages, recipes
from fedmime.experiments.setting import Setting, merged, own, plain, renamed
from fedmime.runs import identity


class Terms(NamedTuple):
    """What clients compute, and what happens to their messages."""

    algorithm: Algorithm
    aggregator: Aggregator
    problem: Any
    model: Any
    """The shapes of the model."""
    secure: SecureSum | None = None
    """How messages are masked; None if they are not."""

    @property
    def configuration(self) -> str:
        """The digest that both sides compare.

        Of the aggregator it covers the clients' half; combiners and noise are the server's own.
        """
        aggregator = self.aggregator
        facts = {
            "algorithm": identity.describe(self.algorithm),
            "encoders": identity.describe(aggregator.encoders),
            "down": identity.describe(aggregator.down),
            "error feedback": aggregator.error_feedback,
            "adaptive": aggregator.adaptive,
            "secure": fields_of(self.secure),
            "problem": self.problem.name,
            "model": identity.shapes(self.model),
            "float64": bool(jax.config.jax_enable_x64),  # pyright: ignore[reportAttributeAccessIssue]
        }
        return identity.digest(facts)

    @property
    def parameters(self) -> str:
        """The digest of the model's arrays alone, which an affine node can derive, too."""
        return parameters_digest(identity.shapes(self.model))


def terms_of(
    algorithm: Algorithm,
    aggregation: Aggregation | None,
    problem: Any,
    model: Any = None,
    secure: SecureSum | None = None,
) -> Terms:
    """The terms for an algorithm and a problem; `model` is what training starts from, if not `problem.init`."""
    aggregator = PLAIN if aggregation is None else chain(aggregation)
    shapes = jax.eval_shape(problem.init, jax.random.key(0)) if model is None else jax.eval_shape(lambda: model)
    return Terms(algorithm, aggregator, problem, shapes, secure)


OWN = ("algorithm", "base")  # what the operators of server and nodes may bring as code of their own


def ours(setting: Setting) -> dict[str, str]:
    """The code of one's own that a setting names: an algorithm, a base optimizer, or both.

    Raises:
        ConfigError: it names two optimizers, which a node could not tell apart.
    """
    found = own(setting)
    bases = {name for field, name in found.items() if field != "algorithm"}
    if len(bases) > 1:
        raise ConfigError(f"deploy: a run takes one optimizer of your own, got {' and '.join(sorted(bases))}")
    return {k: v for k, v in {"algorithm": found.get("algorithm"), "base": next(iter(bases), None)}.items() if v}


def public(setting: Setting, task: str) -> dict[str, Any]:
    """A resolved setting as nodes are told it: without paths of this machine; a node never loads what it names."""
    found = renamed(setting, {field: named.short(name) for field, name in own(setting).items()})
    return plain(dataclasses.replace(found, task=task))


def built(setting: Mapping[str, Any], given: Mapping[str, str] | None = None) -> tuple[Algorithm, Aggregation | None]:
    """The algorithm and the aggregation that a server's setting names.

    A setting holds names of this library's own algorithms and numbers, all of which are checked. Where it says that the
    server has code of its own, what the node's operator has given takes its place, or the setting is refused, before
    anything is loaded: a server must not choose what a client imports.

    Args:
        setting: the server's.
        given: what the node's operator has given, by the names in `OWN`.
    """
    found: Setting = merged(Setting(), setting, "hello")
    asked, given = own(found), given or {}
    for field in OWN:
        names = [name for place, name in asked.items() if (place == "algorithm") == (field == "algorithm")]
        if names and field not in given:
            told = f"the server runs {names[0]!r:.80} of its own, which no server can have a client import"
            raise ConfigError(f"hello: {told}; this node's operator must give its copy as {field}")
        if field in given and not names:
            raise ConfigError(
                f"hello: this node was given {field} {given[field]!r}, but the server runs none of its own"
            )
    found = renamed(found, {place: given["algorithm" if place == "algorithm" else "base"] for place in asked})
    return recipes.algorithm(found), messages.aggregator(found)


def examples_of_round(hello: Hello, examples: int) -> int:
    """How many examples a client that has so many takes in a round, repeated ones counted."""
    steps = int(schedule_of(hello).lengths(np.array([examples]))[0])
    return steps * (hello.batch_size or examples)


def schedule_of(hello: Hello) -> Schedule:
    """The schedule by which a client draws its mini-batches; who takes part in a round is the server's affair."""
    return Schedule(1, hello.batch_size, hello.epochs, hello.steps, hello.seed, "uniform")
