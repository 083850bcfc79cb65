"""Where gradients come from: the cohort's full gradients, and a local step's gradient with its control variate.

A step of Mime needs the gradient of its mini-batch at y and at the anchor x. The second can be computed (`Twice`), put
together from what the full gradient at x kept of every example or mini-batch (`FromFactors`), or looked up, where every
mini-batch is taken once and its gradient at x is part of the full gradient anyway (`FromCache`). Algorithms do not see
which. The first step starts at x: where gradients there are kept, it computes none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from fedmime import native
from fedmime.engine.plan import Sizes, Tables
from fedmime.rows import Rows
from fedmime.vector import Vector, where

T = TypeVar("T")

PROBE_STREAM = 1 << 30  # full gradients draw their random numbers apart from local steps 0, 1, ...


def loop(trips: Any, limit: int | None, body: Callable[[jax.Array, T], T], start: T, core: Any = None) -> T:
    """Run `body` for a number of trips that is an argument, or with a `limit` for that many, masking those too many.

    The first suits a CPU. An accelerator would wait for the host to read the trip count at every trip. `core`: which
    device is to have a core of its own, for loops with long trips; see `devices.own_cores`.
    """
    if limit is not None:
        return lax.fori_loop(0, limit, lambda k, carry: where(k < trips, body(k, carry), carry), start)
    if core is not None:
        return lax.fori_loop(0, trips, lambda k, carry: body(native.settled(k, core), carry), start)
    return lax.fori_loop(0, trips, body, start)


class FactorRules(Protocol):
    """See `fedmime.models.problem.Factors`."""

    @property
    def record(self) -> Callable[..., tuple[jax.Array, Any]]: ...
    @property
    def mean_grad(self) -> Callable[..., Any]: ...
    @property
    def grad_difference(self) -> Callable[..., tuple[jax.Array, Any]]: ...
    @property
    def record_batch(self) -> Callable[..., tuple[jax.Array, Any]] | None: ...
    @property
    def first(self) -> tuple[str, str] | None: ...


class LossProblem(Protocol):
    """What gradients need of a problem."""

    @property
    def loss(self) -> Callable[[Any, Any, jax.Array], jax.Array]: ...
    @property
    def factors(self) -> FactorRules | None: ...


class Examples(NamedTuple):
    """A batch as the engine knows it."""

    fields: Mapping[str, Any]
    weights: jax.Array  # [batch]; zero for padding
    real: jax.Array  # [batch]
    key: jax.Array
    rows: Any  # [batch] which of the device's examples
    step: jax.Array  # place in the table of steps


class Source(Protocol):
    """Gives the loss and gradient of a mini-batch at y, minus `control` times the gradient at the anchor."""

    @property
    def known(self) -> Vector | None:
        """The point, if any, at which both are at hand."""
        ...

    def __call__(self, y: Vector, examples: Examples, control: Any) -> tuple[jax.Array, Vector]: ...


def weighted_loss(problem: LossProblem, params: Any, examples: Examples) -> jax.Array:
    """The weighted sum of the examples' losses. A padded row cannot leak: its loss is replaced, not multiplied."""
    return _total(problem.loss(params, examples.fields, examples.key), examples)


def _total(losses: jax.Array, examples: Examples) -> jax.Array:
    return jnp.sum(jnp.where(examples.real, losses, 0) * examples.weights.astype(losses.dtype))


def loss_and_grad(
    problem: LossProblem, y: Vector, examples: Examples, kept: Any = None, control: Any = 0.0
) -> tuple[jax.Array, Vector]:
    """The loss at y, and the gradient there minus `control` times the one of which the factors were kept."""
    if problem.factors is None:
        loss, grad = jax.value_and_grad(weighted_loss, argnums=1)(problem, y.tree, examples)
        return loss, Vector.pending(grad)
    fields, weights, key = examples.fields, examples.weights, examples.key
    point = y.tree if kept is None else y.whole
    losses, grad = problem.factors.grad_difference(point, fields, kept, weights, control, key)
    return _total(losses, examples), Vector.pending(grad)


class Twice(NamedTuple):
    """Two gradients for each step that has a control variate."""

    problem: LossProblem
    anchor: Vector | None
    known: None = None

    def __call__(self, y: Vector, examples: Examples, control: Any) -> tuple[jax.Array, Vector]:
        loss, at_y = loss_and_grad(self.problem, y, examples)
        if _is(control, 0.0):
            return loss, at_y
        assert self.anchor is not None, "an algorithm that uses a control variate names its anchor"
        return loss, at_y - control * loss_and_grad(self.problem, self.anchor, examples)[1]


class FromFactors(NamedTuple):
    """One gradient for each step, whose products also carry the anchor's factors."""

    problem: LossProblem
    known: Vector
    kept: Any  # losses and factors [examples of the device, ...], or some rows for each of its steps
    steps: int | None = None  # for how many
    alone: bool = False  # whether a device trains one client at a time, in as many steps as it has

    def __call__(self, y: Vector, examples: Examples, control: Any) -> tuple[jax.Array, Vector]:
        if _is(control, 0.0):
            return loss_and_grad(self.problem, y, examples)
        losses, factors = jax.tree.map(lambda leaf: Rows(leaf, self._places(leaf, examples)), self.kept)
        if y is not self.known:
            return loss_and_grad(self.problem, y, examples, factors, control)

        def grad() -> Vector:
            rules, taken = self.problem.factors, jax.tree.map(Rows.taken, factors)
            assert rules is not None
            return Vector.pending(rules.mean_grad(taken, examples.fields, examples.weights))

        return _total(losses.taken(), examples), _rest(y, grad, control)

    def _places(self, leaf: jax.Array, examples: Examples) -> jax.Array:
        if self.steps is None:
            return examples.rows
        rows = len(leaf) // self.steps
        return examples.step * rows + jnp.arange(rows, dtype=jnp.int32)


class FromCache(NamedTuple):
    """One gradient for each step; the anchor's was kept when the full gradient went through the mini-batches."""

    problem: LossProblem
    known: Vector
    kept: Any  # [steps, ...] losses and gradients at the anchor

    def __call__(self, y: Vector, examples: Examples, control: Any) -> tuple[jax.Array, Vector]:
        if _is(control, 0.0):
            return loss_and_grad(self.problem, y, examples)
        loss, kept = jax.tree.map(lambda leaf: leaf[examples.step], self.kept)
        if y is self.known:
            return loss, _rest(y, lambda: Vector.pending(kept), control)
        loss, at_y = loss_and_grad(self.problem, y, examples)
        return loss, at_y - control * Vector(kept)


def _rest(y: Vector, grad: Callable[[], Vector], control: Any) -> Vector:
    """What is left of the gradient at the anchor without `control` times itself: usually nothing."""
    return 0.0 * Vector.pending(y.tree) if _is(control, 1.0) else (1 - control) * grad()


def _is(control: Any, number: float) -> bool:
    return isinstance(control, float) and control == number


def kept_tables(
    problem: LossProblem, control: str, model: Any, row: Mapping[str, Any], sizes: Sizes, chunk: int
) -> Any:
    """The shapes of a device's tables of what is kept of the full gradient at the anchor, for each way to find it.

    `row`: the shapes and dtypes of one example's fields.
    """

    def batch(n: int) -> dict[str, Any]:
        return {name: jax.ShapeDtypeStruct((n, *field.shape), field.dtype) for name, field in row.items()}

    def tables(like: Any, rows: int, each: bool = False) -> Any:
        """So many rows, or with `each` so many for each of those that `like` has."""
        counts = jax.tree.map(lambda leaf: rows * len(leaf) if each else rows, like)
        return jax.tree.map(lambda leaf, n: jax.ShapeDtypeStruct((n, *leaf.shape[1:]), leaf.dtype), like, counts)

    rules, key = problem.factors, jax.eval_shape(lambda: jax.random.key(0))
    if control == "factors" and rules is not None:
        like = jax.eval_shape(rules.record, model, batch(chunk), key)
        return tables(like, sizes.examples + chunk)  # the last chunk may reach beyond the pool
    if control == "step factors" and rules is not None and rules.record_batch is not None:
        weights = jax.ShapeDtypeStruct((sizes.batch,), jax.tree.leaves(model)[0].dtype)
        like = jax.eval_shape(rules.record_batch, model, batch(sizes.batch), weights, key)
        return tables(like, sizes.steps, each=True)
    if control == "cache":
        grads = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((sizes.steps, *leaf.shape), leaf.dtype), model)
        return jax.ShapeDtypeStruct((sizes.steps,), jax.tree.leaves(model)[0].dtype), grads
    return ()


def unfilled(shapes: T) -> T:
    """Tables whose entries are written before they are read."""
    leaves, tree = jax.tree.flatten(shapes)
    return jax.tree.unflatten(tree, [native.unfilled(leaf.shape, leaf.dtype, i) for i, leaf in enumerate(leaves)])


def full_gradient(
    problem: LossProblem, point: Vector, tables: Tables, key: jax.Array, chunk: int, masked: int | None
) -> Vector:
    """One device's part of the cohort's mean full gradient: large batches over the union of its clients' examples."""

    def add(i: jax.Array, total: Vector) -> Vector:
        examples = chunk_of(tables, key, i, chunk)
        return total + loss_and_grad(problem, point, examples)[1]

    return loop(
        tables.chunk_count, masked and tables.chunks.start.shape[0], add, point.map(jnp.zeros_like), tables.core
    )


def full_gradient_with_factors(
    problem: LossProblem,
    point: Vector,
    tables: Tables,
    blank: Any,
    key: jax.Array,
    chunk: int,
    masked: int | None,
    lanes: int = 1,
) -> tuple[Vector, FromFactors]:
    """The same, keeping the factors of every example."""
    rules = problem.factors
    assert rules is not None

    def add(i: jax.Array, carry: tuple[Vector, Any]) -> tuple[Vector, Any]:
        total, kept = carry
        examples = chunk_of(tables, key, i, chunk)
        fresh = rules.record(point.tree, examples.fields, examples.key)
        total = total + Vector.pending(rules.mean_grad(fresh[1], examples.fields, examples.weights))
        start = tables.chunks.start[i]
        kept = jax.tree.map(lambda all_, new: lax.dynamic_update_slice_in_dim(all_, new, start, 0), kept, fresh)
        return total, kept

    total, kept = loop(
        tables.chunk_count,
        masked and tables.chunks.start.shape[0],
        add,
        (point.map(jnp.zeros_like), blank),
        tables.core,
    )
    return total, FromFactors(problem, point, kept, alone=masked is None and lanes == 1)


def full_gradient_by_steps(
    problem: LossProblem, point: Vector, tables: Tables, blank: Any, key: jax.Array, masked: int | None, widths: int
) -> tuple[Vector, FromCache]:
    """The same from the clients' own mini-batches, each of which is taken once; the gradient of each is kept, too.

    Without `blank` tables none is.
    """

    def gradient(examples: Examples) -> tuple[Vector, Any]:
        loss, grad = loss_and_grad(problem, point, examples)
        loss = loss.astype(jax.tree.leaves(point)[0].dtype)
        return grad, jax.tree.map(lambda leaf: leaf[None], (loss, grad.tree)) if jax.tree.leaves(blank) else blank

    total, kept = _by_steps(gradient, point, tables, blank, key, masked, widths)
    return total, FromCache(problem, point, kept)


def full_gradient_with_step_factors(
    problem: LossProblem, point: Vector, tables: Tables, blank: Any, key: jax.Array, masked: int | None
) -> tuple[Vector, FromFactors]:
    """The same, keeping the factors of each mini-batch."""
    rules = problem.factors
    assert rules is not None
    assert rules.record_batch is not None
    record_batch = rules.record_batch

    def gradient(examples: Examples) -> tuple[Vector, Any]:
        kept = record_batch(point.tree, examples.fields, examples.weights, examples.key)
        return Vector.pending(rules.mean_grad(kept[1], examples.fields, examples.weights)), kept

    total, kept = _by_steps(gradient, point, tables, blank, key, masked)
    return total, FromFactors(problem, point, kept, tables.counts.shape[0])


def _by_steps(
    gradient: Callable[[Examples], tuple[Vector, Any]],
    point: Vector,
    tables: Tables,
    blank: Any,
    key: jax.Array,
    masked: int | None,
    widths: int = 1,
) -> tuple[Vector, Any]:
    """The clients' gradients as sums over their mini-batches, and what is kept of each: some rows of every leaf."""

    def client(i: jax.Array, carry: tuple[Vector, Any]) -> tuple[Vector, Any]:
        first, own = tables.clients.first[i], jax.random.fold_in(key, tables.clients.index[i])
        batches = Batches(tables, own, first, point, widths)

        def add(k: jax.Array, carry: tuple[Vector, Any]) -> tuple[Vector, Any]:
            total, kept = carry
            grad, fresh = batches.each(k, gradient)
            step = first + k
            share = tables.probe_weights[tables.rows[step, 0]] * tables.counts[step]
            kept = jax.tree.map(
                lambda all_, new: lax.dynamic_update_slice_in_dim(all_, new, step * len(new), 0), kept, fresh
            )
            return total + share * grad, kept

        return loop(tables.clients.steps[i], masked, add, carry)

    limit = masked and tables.clients.steps.shape[0]
    return loop(tables.client_count, limit, client, (point.map(jnp.zeros_like), blank), tables.core)


def chunk_of(tables: Tables, key: jax.Array, i: Any, chunk: int) -> Examples:
    """A stretch of the device's examples; each example weighs what its client's full gradient does."""
    start, count, owner, number = (column[i] for column in tables.chunks)
    place = jnp.arange(chunk)
    rows = start + jnp.minimum(place, count - 1)  # padding repeats a real row
    real = place < count
    key = jax.random.fold_in(jax.random.fold_in(key, owner), PROBE_STREAM + number)
    return Examples(_gather(tables, rows), jnp.where(real, tables.probe_weights[rows], 0), real, key, rows, i)


class Batches(NamedTuple):
    """One client's mini-batches."""

    tables: Tables
    key: jax.Array  # the client's own
    first: jax.Array  # place of its first step in the table of steps
    model: Vector
    widths: int  # how many programs there are for a step: for all mini-batches one, or narrower ones for short ones

    def each(self, k: jax.Array, work: Callable[..., T], *carry: Any) -> T:
        """`work(examples, *carry)` on the k-th mini-batch, at the least width that has room for it."""
        batch = self.tables.rows.shape[-1]
        widths = sorted({-(-batch * i // self.widths) for i in range(1, self.widths + 1)})
        branches = [lambda *carry, width=width: work(self.examples(k, width), *carry) for width in widths]
        if len(branches) == 1:
            return branches[0](*carry)
        place = jnp.sum(self.tables.counts[self.first + k] > jnp.asarray(widths[:-1]))
        return lax.switch(place, branches, *carry)

    def examples(self, k: jax.Array, width: int | None = None) -> Examples:
        """The k-th; real examples come first, and weigh 1/count in the model's precision."""
        step, width = self.first + k, width or self.tables.rows.shape[-1]
        rows, count = self.tables.rows[step, :width], self.tables.counts[step]
        dtype = jax.tree.leaves(self.model)[0].dtype
        real = jnp.arange(width) < count
        weights = real.astype(dtype) / count.astype(dtype)
        return Examples(_gather(self.tables, rows), weights, real, jax.random.fold_in(self.key, k), rows, step)

    def table(self, field: str) -> tuple[jax.Array, jax.Array]:
        """A field of all examples, flattened, and where the rows of all steps are in it, one after another."""
        column, rows = jnp.asarray(self.tables.pool[field]), jnp.asarray(self.tables.rows).reshape(-1)
        return column.reshape(column.shape[0], -1), _places(self.tables, rows)


def _gather(tables: Tables, rows: Any) -> dict[str, Any]:
    places = _places(tables, rows)
    return {name: native.take(jnp.asarray(column), places) for name, column in tables.pool.items()}


def _places(tables: Tables, rows: Any) -> Any:
    """Where rows of a device's examples are in the pool."""
    return tables.places[rows] if tables.places.size else rows
