"""The kernels as functions of arrays, without derivatives: layers define those."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fedmime.native.library import ready, target

Padding = tuple[tuple[int, int], tuple[int, int]]
More = tuple[jax.Array, jax.Array, jax.Array]  # a d, and the table and the places whose rows are its a
MULTIPLE = 16  # of output channels, and the least width of dense layers: whole vectors on any CPU
ARRAYS = 16  # that can be added up
MANY = 1 << 14  # entries from which on the kernels add up the faster
TERMS = 4  # that can be added to a sum of outer products
FEW = 32  # rows of a mini-batch: too few for the kernels to be the faster where weights are narrow
ROWS, LONG = (
    64,
    512,
)  # from which on weights are laid out in panels for x w^T; but few long rows of them for more rows only
AT_ONCE = 4  # rows of which inner products are found together, see linear.c
WIDEST = 64  # rows of a panel, or a multiple of them, on any CPU
MOST = 256  # rows whose outer products can be added to terms; more are packed, see linear.c


def usable(*arrays: jax.Array) -> bool:
    """Whether the kernels can take such arrays on this machine. Shapes that do not match are left to XLA's messages."""
    return all(a.dtype == jnp.float32 and a.size for a in arrays) and ready()


def convolves(x: jax.Array, kernel: jax.Array, pads: Padding) -> bool:
    """Whether the kernels can convolve images with a kernel, padded like this."""
    fits = x.shape[3] == kernel.shape[2] and min(_slid(x.shape[1:3], kernel.shape[:2], pads)) > 0
    return fits and _in_vectors(kernel, pads) and usable(x, kernel)


def correlates(x: jax.Array, d: jax.Array, pads: Padding) -> bool:
    """Whether the kernels can find a kernel's cotangent from images and cotangents, padded like this."""
    fits = x.shape[0] == d.shape[0] and min(_slid(x.shape[1:3], d.shape[1:3], pads)) > 0
    return fits and _in_vectors(d, pads) and usable(x, d)


def unrolls(z: jax.Array, u: jax.Array, b: jax.Array) -> bool:
    """Whether the kernels can run such a layer forwards."""
    hidden = u.shape[0]
    return u.shape == (hidden, 4 * hidden) and z.shape[2:] == b.shape == (4 * hidden,) and usable(z, u, b)


def unrolls_back(d: jax.Array, gates: jax.Array, c: jax.Array, u: jax.Array) -> bool:
    """Whether the kernels can run such a layer backwards."""
    time, batch, hidden = c.shape
    fits = d.shape == c.shape and gates.shape == (time, batch, 4 * hidden) and u.shape == (hidden, 4 * hidden)
    return fits and usable(d, gates, c, u)


def multiplies(x: jax.Array, w: jax.Array) -> bool:
    """Whether the kernels can and should find inner products of rows."""
    return x.shape[1] == w.shape[1] and _wide(x.shape[0], *w.shape) and usable(x, w)


def passes_on(d: jax.Array, w: jax.Array) -> bool:
    """Whether the kernels can and should multiply rows with a matrix."""
    return d.shape[1] == w.shape[0] and _wide(d.shape[0], *w.shape) and usable(d, w)


def adds_outer(d: jax.Array, a: jax.Array, terms: Sequence[jax.Array] = (), more: More | tuple[()] = ()) -> bool:
    """Whether the kernels can and should add up outer products of rows, terms and more products with them."""
    fits = d.shape[0] == a.shape[0] and all(t.shape == (d.shape[1], a.shape[1]) for t in terms)
    if more:
        other, table, places = more
        fits = fits and other.shape == (*places.shape, d.shape[1]) and table.shape[1:] == a.shape[1:]
        fits = fits and takes(table, places) and usable(other) and places.size <= MOST
    if terms or more:
        fits = fits and d.shape[0] <= MOST and min(d.shape[1], a.shape[1]) >= MULTIPLE and len(terms) <= TERMS
    return fits and _wide(d.shape[0], d.shape[1], a.shape[1]) and usable(d, a, *terms)


def sums(*arrays: jax.Array) -> bool:
    """Whether the kernels can and should go through such arrays, entry by entry."""
    fits = len(arrays) <= ARRAYS and all(a.shape == arrays[0].shape for a in arrays)
    return fits and arrays[0].size >= MANY and usable(*arrays)


def unfilled(shape: tuple[int, ...], dtype: Any, number: int = 0) -> jax.Array:
    """An array that will be written before it is read; give several of one shape different numbers."""
    if dtype != jnp.float32 or not math.prod(shape) or not ready():
        return jnp.zeros(shape, dtype)
    return _call("unfilled", [shape])(number=number)[0]


def settled(number: jax.Array, core: Any) -> jax.Array:
    """A whole number as it is, once the thread that computes it for a device is on a core of the device's own.

    `core`: the number of that device, among as many as there are cores, or -1 for any core.
    """
    if number.dtype != jnp.int32 or core.dtype != jnp.int32 or not ready():
        return number
    return jax.ffi.ffi_call(target("settled"), jax.typeof(number), vmap_method="sequential")(number, core)


def begun(number: jax.Array) -> jax.Array:
    """A whole number as it is; the device that asks for it is `at_work`."""
    if number.dtype != jnp.int32 or not ready():
        return number
    return jax.ffi.ffi_call(target("begun"), jax.typeof(number), vmap_method="sequential")(number)


def totals(*arrays: jax.Array) -> bool:
    """Whether the kernels can add such arrays up over devices."""
    return all(a.dtype in (jnp.float32, jnp.float64, jnp.int32, jnp.int64) for a in arrays) and ready()


def total(
    place: jax.Array,
    devices: int,
    arrays: Sequence[jax.Array],
    after: Sequence[jax.Array] = (),
    filled: jax.Array | None = None,
    rows: Sequence[jax.Array] = (),
) -> list[jax.Array]:
    """Arrays added up over the devices that run a program together, of which the caller is at a place.

    With `rows`, tables that have the same number of them for each array, all rows are added, too, in their order, each
    from the device that `filled` it. All devices have to come to a program's totals in the same order: give arrays of
    the one `after` which this comes.
    """
    count = 0 if filled is None else filled.size
    who = jnp.stack([place.astype(jnp.int32), *(jnp.asarray(n, jnp.int32) for n in (devices, count))])
    kinds = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays]
    aliases = {i + 1: i for i in range(len(arrays))}
    more = () if filled is None else (filled.astype(jnp.int32), *rows)
    return list(jax.ffi.ffi_call(target("total"), kinds, input_output_aliases=aliases)(who, *arrays, *more, *after[:1]))


def next_piece(trip: jax.Array, own: Any, first: int, common: Any, devices: int, after: jax.Array) -> jax.Array:
    """What a device does in a trip: its own pieces of work, `first` and on; then 0 and on of what all have in common.

    Of those every device gets others, whichever asks `after` having done what it had before; -1 once none is left.
    """
    asked = jnp.stack([jnp.asarray(n, jnp.int32) for n in (trip, own, first, common, devices)])
    return jax.ffi.ffi_call(target("next"), jax.ShapeDtypeStruct((), jnp.int32))(asked, after)


def takes(table: jax.Array, places: jax.Array) -> bool:
    """Whether the kernels can take rows of such a table."""
    return places.dtype == jnp.int32 and places.ndim == 1 and usable(table)


def weighted_rows(table: jax.Array, places: jax.Array, weights: jax.Array) -> jax.Array:
    """The rows that `take` would give, times their weights [m], added up."""
    if not takes(table, places) or weights.shape != places.shape or not usable(weights):
        return jnp.tensordot(weights, table[places], axes=1)
    total = _call("weighted_rows", [(math.prod(table.shape[1:]),)])(table.reshape(table.shape[0], -1), places, weights)
    return total[0].reshape(table.shape[1:])


def take(table: jax.Array, places: jax.Array) -> jax.Array:
    """Rows of a table [n, width], or of one with more axes, at int32 `places` [m] within it."""
    if not takes(table, places):
        return table[places]
    rows = _call("take", [(places.shape[0], math.prod(table.shape[1:]))])(table.reshape(table.shape[0], -1), places)[0]
    return rows.reshape(places.shape[0], *table.shape[1:])


def inner_products(x: jax.Array, w: jax.Array) -> jax.Array:
    """The product x w^T for x [n, in], w [out, in].

    For many rows w is laid out anew; in a loop over such rows XLA does that once, before it.
    """
    rows, (out, width) = x.shape[0], w.shape
    if rows < ROWS or (rows <= MOST and out <= WIDEST and width >= LONG):
        return _call("inner_products", [(rows, out)])(x, w)[0]
    return _call("panel_products", [(rows, out)])(x, panels(w))[0]


def panels(w: jax.Array) -> jax.Array:
    """Weights [out, in] laid out for products with many rows."""
    out, width = w.shape
    return _call("panels", [(-(-out // WIDEST) * WIDEST * width,)])(w)[0]


def products(d: jax.Array, w: jax.Array) -> jax.Array:
    """The product d w for d [n, out], w [out, in]."""
    return _call("products", [(d.shape[0], w.shape[1])])(d, w)[0]


def outer_sum(d: jax.Array, a: jax.Array) -> jax.Array:
    """The product d^T a for d [n, out], a [n, in]."""
    return _call("outer_sum", [(d.shape[1], a.shape[1])])(d, a)[0]


def add_outer(
    d: jax.Array,
    a: jax.Array,
    scales: jax.Array,
    terms: Sequence[jax.Array],
    after: Sequence[jax.Array] = (),
    more: More | tuple[()] = (),
) -> jax.Array:
    """The same plus terms [out, in], each times its scale; the result takes the memory of the first.

    XLA copies that term if it may have to be read once more. It need not be for what was computed before: arrays
    `after` which this comes.
    """
    name = "outer_sum_of_rows" if more else "outer_sum"
    return _call(name, [terms[0].shape], {len(more) + 3: 0})(*more, d, a, scales, *terms, *after)[0]


def dual_fits(table: jax.Array, places: jax.Array, weights: jax.Array, batch: int) -> bool:
    """Whether the kernels can keep a layer's weights in dual form, for mini-batches of rows of a table."""
    fits = table.ndim == weights.ndim == 2 and table.shape[1] == weights.shape[1]
    return (
        fits and AT_ONCE <= batch <= FEW and min(weights.shape) >= MULTIPLE and takes(table, places) and usable(weights)
    )


def dual_begin(
    table: jax.Array, places: jax.Array, first: jax.Array, count: jax.Array, weights: jax.Array, out: int, most: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`count` rows of a table [n, in], at places from the `first` on, and their products with `panels` of weights.

    And room for as many rows as wide as these. Of all three only so many rows are written as there are.
    """
    span = jnp.stack([jnp.asarray(n, jnp.int32) for n in (first, count)])
    call = _call("dual_begin", [(most, table.shape[1]), (most, out), (most, out)])
    rows, products, room = call(table, places, span, weights)
    return rows, products, room


def dual_products(rows: jax.Array, d: jax.Array, place: jax.Array, batch: int) -> jax.Array:
    """The product (x a^T) d [batch, out]: rows x from a place on, and a [place, in], d [place, out] before it."""
    return _call("dual_products", [(batch, d.shape[1])])(rows, d, place)[0]


def dual_sum(
    count: jax.Array, d: jax.Array, rows: jax.Array, scales: jax.Array, terms: Sequence[jax.Array]
) -> jax.Array:
    """The outer products of the first rows of d [most, out] and rows [most, in], and terms [out, in] times scales."""
    return _call("outer_sum_of_some", [terms[0].shape])(count, d, rows, scales, *terms)[0]


def entropies(z: jax.Array, labels: jax.Array) -> bool:
    """Whether the kernels can compare logits with labels like these."""
    whole = jnp.issubdtype(labels.dtype, jnp.integer)
    return z.ndim == 2 and whole and labels.shape == z.shape[:1] and usable(z)


def cross_entropy(z: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """log(sum of e^z) - z at the label for each row of z [n, classes], and the derivatives of these [n, classes]."""
    losses, d = _call("cross_entropy", [z.shape[:1], z.shape])(z, labels.astype(jnp.int32))
    return losses, d


def weighted_sum(scales: jax.Array, *arrays: jax.Array) -> jax.Array:
    """Arrays of one shape times their scales, added up; what a scale of zero belongs to may be NaN.

    The first array's memory becomes that of the result, where nothing else needs it.
    """
    return _call("weighted_sum", [arrays[0].shape], {1: 0})(scales, *arrays)[0]


def put(table: jax.Array, row: jax.Array, scales: jax.Array, *arrays: jax.Array) -> jax.Array:
    """The same into a row of a table, in its memory; where it has no such row, the table as it is."""
    return _call("put", [table.shape], {0: 0})(table, row, scales, *arrays)[0]


def dot(a: jax.Array, b: jax.Array) -> jax.Array:
    """The inner product of two arrays of one shape, over all axes."""
    return _call("dot", [()])(a, b)[0]


def squared_distance(a: jax.Array, b: jax.Array) -> jax.Array:
    """The squared Euclidean distance of two arrays of one shape."""
    return _call("squared_distance", [()])(a, b)[0]


def choose(condition: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
    """One of two arrays of one shape by a truth value; `a` in its own memory, where nothing else needs it."""
    return _call("choose", [a.shape], {1: 0})(condition.astype(jnp.int32), a, b)[0]


def convolve(x: jax.Array, kernel: jax.Array, pads: Padding) -> jax.Array:
    """`x` [batch, height, width, in] with `kernel` [height, width, in, out], stride 1."""
    shape = (x.shape[0], *_slid(x.shape[1:3], kernel.shape[:2], pads), kernel.shape[3])
    return _call("convolve", [shape])(x, kernel)[0]


def kernel_gradient(x: jax.Array, d: jax.Array, pads: Padding) -> jax.Array:
    """The cotangent of the kernel [height, width, in, out]."""
    return _call("kernel_gradient", [_kernel_shape(x, d, pads)])(x, d)[0]


def kernel_gradients(x: jax.Array, d: jax.Array, pads: Padding) -> jax.Array:
    """The cotangent of the kernel of every example by itself: [batch, height, width, in, out]."""
    return _call("kernel_gradient", [(x.shape[0], *_kernel_shape(x, d, pads))])(x, d)[0]


def lstm_forward(z: jax.Array, u: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Outputs and cells [time, batch, hidden] and opened gates, for inputs z [time, batch, 4 hidden]."""
    outputs = (*z.shape[:2], u.shape[0])
    h, c, gates = _call("lstm_forward", [outputs, outputs, z.shape], {0: 2})(z, u, b)
    return h, c, gates


def lstm_backward(d: jax.Array, gates: jax.Array, c: jax.Array, u: jax.Array) -> jax.Array:
    """The cotangent of z [time, batch, 4 hidden] for the cotangent d of the outputs."""
    return _call("lstm_backward", [gates.shape], {1: 0})(d, gates, c, u)[0]


def _call(kernel: str, shapes: Sequence[tuple[int, ...]], aliases: dict[int, int] | None = None) -> Any:
    results = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return jax.ffi.ffi_call(target(kernel), results, vmap_method="sequential", input_output_aliases=aliases)


def _kernel_shape(x: jax.Array, d: jax.Array, pads: Padding) -> tuple[int, ...]:
    return (*_slid(x.shape[1:3], d.shape[1:3], pads), x.shape[3], d.shape[3])


def _slid(size: Sequence[int], window: Sequence[int], pads: Padding) -> tuple[int, ...]:
    """How many places a window has in something padded."""
    return tuple(n + sum(pad) - k + 1 for n, k, pad in zip(size, window, pads, strict=True))


def _in_vectors(other: jax.Array, pads: Padding) -> bool:
    return other.shape[-1] % MULTIPLE == 0 and all(before == after >= 0 for before, after in pads)


def _wide(rows: int, *widths: int) -> bool:
    """Whether weights are wide enough for the kernels to go through them as they lie, or rows enough to be packed."""
    return rows > FEW or min(widths) >= MULTIPLE
