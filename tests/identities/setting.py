"""One logistic problem, cohorts of fixed shapes drawn from a seed, and the decorator that counts a law as shown.

Every cohort is padded to the same tables and every number is an argument of the compiled round, so each algorithm
costs one program for all laws and all draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import fedmime as fm
from fedmime.engine.backends.local.layout import Layout
from fedmime.engine.backends.specification import Local
from fedmime.optimizers import BaseOptimizer
from fedmime.vector import Vector
from reference import problems as ref_problems
from reference.tree import Tree

DIM, CLASSES = 4, 3
CLIENTS, STEPS, WIDTH = 4, 3, 6
EXAMPLES = 6  # draws for each law
HEADING = "identities of SPEC 3"
Params = dict[str, Any]
Random = np.random.Generator


def _loss(params: Params, batch: Any, key: Any) -> jax.Array:
    logits = batch["x"] @ params["w"] + params["b"]
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), batch["y"][:, None], axis=1)[:, 0]


PROBLEM = fm.models.from_functions(lambda key: None, _loss)
grad = ref_problems.logistic().grad  # the same in NumPy: the mean gradient of a batch


def roomy(devices: int) -> Local:
    """A back end whose tables are large enough for every cohort here, so that all of them run one program."""
    layout = Layout(devices, 256)
    for name, needed in (("examples", 256), ("steps", 32), ("clients", 8), ("chunks", 4), ("pool", 256)):
        layout.size(name, needed)
    return Local(devices, layout)


BACKENDS = {devices: roomy(devices) for devices in (1, 2)}


class Clients(NamedTuple):
    """Mini-batches [steps, width, ...] of every client, and which of their rows are real."""

    batches: list[dict[str, np.ndarray]]
    masks: list[np.ndarray]

    def pick(self, order: Sequence[int]) -> Clients:
        """These clients, in this order."""
        return Clients([self.batches[i] for i in order], [self.masks[i] for i in order])

    def steps(self, i: int) -> list[dict[str, np.ndarray]]:
        """One client's mini-batches without padding."""
        steps = zip(self.batches[i]["x"], self.batches[i]["y"], self.masks[i], strict=True)
        return [{"x": x[real], "y": y[real]} for x, y, real in steps]

    def full(self, i: int) -> dict[str, np.ndarray]:
        """All of one client's examples."""
        return {name: column[self.masks[i]] for name, column in self.batches[i].items()}

    def cohort(self, **options: Any) -> fm.Cohort:
        """The same for a round."""
        return fm.Cohort.from_batches(self.batches, self.masks, **options)


def clients(rng: Random, number: int = CLIENTS, steps: int = STEPS, rows: int | None = None) -> Clients:
    """Random clients whose mini-batches have `rows` examples, or any number of them."""
    batches = [
        {"x": rng.normal(size=(steps, WIDTH, DIM)), "y": rng.integers(0, CLASSES, (steps, WIDTH))}
        for _ in range(number)
    ]
    lengths = rng.integers(1, WIDTH + 1, (number, steps)) if rows is None else np.full((number, steps), rows)
    return Clients(batches, list(np.arange(WIDTH) < lengths[..., None]))


def identical(rng: Random, steps: int = STEPS, rows: int = WIDTH) -> Clients:
    """Clients that all hold the same examples and take all of them at every step."""
    one = clients(rng, 1, 1, rows)
    same = {name: np.repeat(column, steps, axis=0) for name, column in one.batches[0].items()}
    return Clients([same] * CLIENTS, [np.repeat(one.masks[0], steps, axis=0)] * CLIENTS)


def full_batches(rng: Random, number: int = CLIENTS, steps: int = STEPS) -> Clients:
    """Clients that take all of their own examples at every step."""
    drawn = [clients(rng, 1, 1) for _ in range(number)]
    batches = [{k: np.repeat(a, steps, axis=0) for k, a in one.batches[0].items()} for one in drawn]
    return Clients(batches, [np.repeat(one.masks[0], steps, axis=0) for one in drawn])


def model(rng: Random) -> Params:
    """A random model."""
    return {"w": 0.5 * rng.normal(size=(DIM, CLASSES)), "b": 0.5 * rng.normal(size=CLASSES)}


def weights(rng: Random, number: int = CLIENTS) -> np.ndarray:
    """Random client weights."""
    return rng.uniform(0.1, 2.0, number)


def rate(rng: Random) -> float:
    """A random learning rate."""
    return float(rng.uniform(0.01, 0.3))


def bases(rng: Random) -> dict[str, BaseOptimizer]:
    """Every base optimizer with a linear U, with random numbers."""
    (beta1, beta2), eps = rng.uniform(0.1, 0.95, 2), float(rng.uniform(1e-3, 1e-1))
    beta1, beta2 = float(beta1), float(beta2)
    o = fm.optimizers
    return {
        "sgd": o.sgd(),
        "momentum": o.momentum(beta1),
        "adagrad": o.adagrad(0.1, eps),
        "adam": o.adam(beta1, beta2, eps),
        "adam-corrected": o.adam(beta1, beta2, eps, bias_correction=True),
        "rmsprop": o.rmsprop(beta2, eps),
        "yogi": o.yogi(beta1, beta2, eps),
        "sm3": o.sm3(eps),
        "adafactor": o.adafactor(floor=eps),
    }


def statistics(base: BaseOptimizer, rng: Random) -> Any:
    """The statistics of a base that has seen two random gradients."""
    return _tracked(base, Vector(model(rng)), Vector(model(rng)))


update = jax.jit(lambda base, g, s: base.update(g, s))
_tracked = jax.jit(lambda base, g, h: base.track(h, base.track(g, base.init(g))))


def seasoned(algorithm: Any, x: Params, s: Any) -> fm.State:
    """A state after the gradient-only rounds whose statistics are `s`."""
    return ready(algorithm, x, s=s)


def ready(algorithm: Any, x: Params, **fields: Any) -> fm.State:
    """A state after the gradient-only rounds, as the same program runs with and without them."""
    state = algorithm.init(x)
    return state._replace(round=algorithm.gradient_rounds, server=state.server._replace(**fields))


def play(algorithm: Any, start: fm.State | Params, *cohorts: fm.Cohort, devices: int = 2) -> fm.State:
    """The state after a round on each cohort."""
    state = start if isinstance(start, fm.State) else algorithm.init(start)
    for cohort in cohorts:
        state, info = fm.run_round(algorithm, PROBLEM, state, cohort, backend=BACKENDS[devices])
        assert not info.abandoned
        assert not info.refused
    return state


def distance(a: Any, b: Any) -> float:
    """The largest difference of two pytrees, relative to the largest entry of the second."""
    a, b = (np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(_plain(tree))]) for tree in (a, b))
    return float(np.abs(a - b).max() / np.abs(b).max())


def _plain(tree: Any) -> Any:
    return dict(tree) if isinstance(tree, Tree) else tree


def apart(a: fm.State, b: fm.State) -> float:
    """The relative difference of two server models."""
    return distance(fm.params(a), fm.params(b))


def identity(law: Callable[[Random], float], tolerance: float = 1e-10) -> Callable[..., None]:
    """A test that draws data for a law, which returns its relative error, and counts it once as shown."""

    def test(fact: Callable[..., None]) -> None:
        errors = [0.0]

        @settings(max_examples=EXAMPLES, phases=[Phase.generate])  # a smaller seed is not a smaller case
        @given(st.integers(0, 2**32 - 1))
        def holds(seed: int) -> None:
            error = law(np.random.default_rng(seed))
            assert error <= tolerance
            errors.append(error)

        holds()
        fact(HEADING, max(errors))

    test.__name__, test.__doc__ = law.__name__, law.__doc__
    return test


def exactly(law: Callable[[Random], float]) -> Callable[..., None]:
    """The same for laws that hold bit for bit."""
    return identity(law, tolerance=0.0)
