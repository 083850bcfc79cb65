"""The terms of a run: what a server and its nodes must agree on before the first round.

A node that computed something slightly different would send sound numbers that mean another thing, and nobody would
notice. So both sides derive one digest of everything that decides what a client computes, and compare.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from fedmime.aggregation.aggregator import PLAIN, Aggregator
from fedmime.aggregation.chains import Aggregation, chain
from fedmime.algorithms.algorithm import Algorithm
from fedmime.deploy.messages import Hello, parameters_digest
from fedmime.deploy.secure.options import SecureSum, fields_of
from fedmime.engine.sampling import Schedule
from fedmime.experiments import messages, recipes
from fedmime.experiments.setting import Setting, merged
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
            "feedback": aggregator.feedback,
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


def built(setting: Mapping[str, Any]) -> tuple[Algorithm, Aggregation | None]:
    """The algorithm and the aggregation that a server's setting names.

    A setting holds names of this library's own algorithms and numbers, all of which are checked. Nothing in it can name
    a file or a piece of code that would be loaded.
    """
    found: Setting = merged(Setting(), setting, "hello")
    return recipes.algorithm(found), messages.aggregator(found)


def schedule_of(hello: Hello) -> Schedule:
    """The schedule by which a client draws its mini-batches; who takes part in a round is the server's affair."""
    return Schedule(1, hello.batch_size, hello.epochs, hello.steps, hello.seed, "uniform")
