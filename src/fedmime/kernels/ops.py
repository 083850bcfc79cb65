"""The registry of operations that have a kernel in C: each is named here once, with its definition in JAX.

An operation is a function of arrays without derivatives; the layers that use it define those. A kernel runs for float32
on a CPU where a C compiler was found, and only for shapes for which it is the faster one. Everything else, and
`FEDMIME_NATIVE=0`, takes the definition in JAX, so callers never ask whether there are kernels. One exception:
`lstm_forward` and `lstm_backward` return None without a kernel, because the layer has a loop of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedmime.kernels.build import ready, target

Padding = tuple[tuple[int, int], tuple[int, int]]

VECTOR = 16  # entries of the widest vector register: least width of dense layers, divisor of output channels
FEW_ROWS = 32  # up to this many rows, storing the transposed operand is faster
MOST_ROWS = 256  # up to this many rows, the C kernel is faster than XLA's matrix product
MOST_TERMS = 4  # the most arrays to which the C kernel can add an outer product in one pass
_CONVOLUTION = ("NHWC", "HWIO", "NHWC")


def take(table: jax.Array, places: jax.Array) -> jax.Array:
    """Rows of a table [n, ...] at int32 `places` [m]: [m, ...]."""
    if not usable("take", table) or places.dtype != jnp.int32 or places.ndim != 1:
        return table[places]
    width = math.prod(table.shape[1:])
    rows = _call("take", [(places.shape[0], width)])(table.reshape(table.shape[0], width), places)[0]
    return rows.reshape(places.shape[0], *table.shape[1:])


def inner_products(x: jax.Array, w: jax.Array) -> jax.Array:
    """The product x wᵀ for x [n, in], w [out, in]: [n, out]."""
    if x.shape[1] == w.shape[1] and _small(x.shape[0], *w.shape) and usable("inner_products", x, w):
        return _call("inner_products", [(x.shape[0], w.shape[0])])(x, w)[0]
    return lax.dot_general(x, w, (((1,), (1,)), ((), ())))


def outer_sum(d: jax.Array, a: jax.Array) -> jax.Array:
    """The product dᵀ a for d [n, out], a [n, in]: the weight gradient [out, in] of a dense layer.

    For a mini-batch, the barrier makes XLA:CPU store the small transposed operand instead of walking it with a stride.
    """
    if adds_outer(d, a):
        return _call("outer_sum", [(d.shape[1], a.shape[1])])(d, a)[0]
    return (lax.optimization_barrier(d.T) if d.shape[0] <= FEW_ROWS else d.T) @ a


def adds_outer(d: jax.Array, a: jax.Array) -> bool:
    """Whether a kernel can compute dᵀa, and add it to other arrays in the same pass."""
    fits = d.shape[0] == a.shape[0] and _small(d.shape[0], d.shape[1], a.shape[1])
    return fits and usable("outer_sum", d, a)


def add_outer(
    d: jax.Array, a: jax.Array, terms: Sequence[tuple[Any, jax.Array]], after: Sequence[jax.Array] = ()
) -> jax.Array:
    """Σ sᵢ·tᵢ + dᵀa for d [n, out], a [n, in] and terms of a scalar sᵢ and an array tᵢ [out, in].

    The kernel writes the result in the memory of the first term. XLA copies that term first if it may still be read,
    unless it knows the results of such reads: arrays `after` which this operation comes.
    """
    arrays = [array for _, array in terms]
    if not 0 < len(terms) <= MOST_TERMS or not adds_outer(d, a) or not usable("outer_sum", *arrays):
        return weighted_sum([*terms, (1.0, outer_sum(d, a))])
    scales = jnp.stack([jnp.asarray(scale, d.dtype) for scale, _ in terms])
    return _call("outer_sum", [arrays[0].shape], {3: 0})(d, a, scales, *arrays, *after)[0]


def weighted_sum(terms: Sequence[tuple[Any, jax.Array]]) -> jax.Array:
    """Σ sᵢ·tᵢ of arrays of one shape."""
    first, *others = (jnp.asarray(scale, array.dtype) * array for scale, array in terms)
    return sum(others, start=first)


def summable(array: Any) -> bool:
    """Whether an array may be a term of a sum with an outer product."""
    return array.ndim == 2 and min(array.shape) >= VECTOR and usable("outer_sum", array)


def convolve(x: jax.Array, kernel: jax.Array, pads: Padding) -> jax.Array:
    """X [batch, height, width, in] convolved with a kernel [height, width, in, out], stride 1."""
    size = _output_size(x.shape[1:3], kernel.shape[:2], pads)
    fits = x.shape[3] == kernel.shape[2] and min(size) > 0 and _whole_vectors_and_equal_pads(kernel, pads)
    if fits and usable("convolve", x, kernel):
        return _call("convolve", [(x.shape[0], *size, kernel.shape[3])])(x, kernel)[0]
    return lax.conv_general_dilated(x, kernel, (1, 1), pads, dimension_numbers=_CONVOLUTION)


def kernel_gradient(x: jax.Array, d: jax.Array, pads: Padding) -> jax.Array:
    """The cotangent [height, width, in, out] of a convolution's kernel, for images x and the cotangent d of the output.

    On a CPU, XLA takes one example after another, whose images stay in its cache: a third faster than all at once.
    """
    if _correlates(x, d, pads):
        return _call("kernel_gradient", [_kernel_shape(x, d, pads)])(x, d)[0]

    def by_example(x: jax.Array, d: jax.Array) -> jax.Array:
        def add(total: jax.Array, one: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            return total + _correlate(one[0][None], one[1][None], pads), None

        like = jax.eval_shape(lambda: _correlate(x, d, pads))
        return lax.scan(add, jnp.zeros(like.shape, like.dtype), (x, d))[0]

    at_once = lambda x, d: _correlate(x, d, pads)
    return lax.platform_dependent(x, d, cpu=by_example, default=at_once).transpose(1, 2, 0, 3)


def kernel_gradients(x: jax.Array, d: jax.Array, pads: Padding) -> jax.Array:
    """The same for every example by itself: [batch, height, width, in, out]."""
    if _correlates(x, d, pads):
        return _call("kernel_gradient", [(x.shape[0], *_kernel_shape(x, d, pads))])(x, d)[0]
    each = lax.map(lambda one: _correlate(one[0][None], one[1][None], pads), (x, d))
    return each.transpose(0, 2, 3, 1, 4)


def lstm_forward(z: jax.Array, u: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array] | None:
    """Outputs and cells [time, batch, hidden] and opened gates [time, batch, 4 hidden] of an LSTM layer.

    z [time, batch, 4 hidden] holds the inputs' products. None where no kernel can run it: the layer has its own loop.
    """
    hidden = u.shape[0]
    fits = u.shape == (hidden, 4 * hidden) and z.shape[2:] == b.shape == (4 * hidden,)
    if not fits or not usable("lstm_forward", z, u, b):
        return None
    outputs = (*z.shape[:2], hidden)
    h, c, gates = _call("lstm_forward", [outputs, outputs, z.shape], {0: 2})(z, u, b)
    return h, c, gates


def lstm_backward(d: jax.Array, gates: jax.Array, c: jax.Array, u: jax.Array) -> jax.Array | None:
    """The cotangent of z [time, batch, 4 hidden] for the cotangent d of the outputs; None where there is no kernel."""
    time, batch, hidden = c.shape
    fits = d.shape == c.shape and gates.shape == (time, batch, 4 * hidden) and u.shape == (hidden, 4 * hidden)
    if not fits or not usable("lstm_backward", d, gates, c, u):
        return None
    return _call("lstm_backward", [gates.shape], {1: 0})(d, gates, c, u)[0]


def usable(kernel: str, *arrays: jax.Array) -> bool:
    """Whether a kernel can take such arrays on this machine; shapes that do not match are left to XLA's messages."""
    return all(a.dtype == jnp.float32 and a.size for a in arrays) and ready(kernel)


def _call(kernel: str, shapes: Sequence[tuple[int, ...]], aliases: dict[int, int] | None = None) -> Any:
    results = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return jax.ffi.ffi_call(target(kernel), results, vmap_method="sequential", input_output_aliases=aliases)


def _small(rows: int, *widths: int) -> bool:
    """Whether there are few rows, and weights are at least a vector wide."""
    return rows <= MOST_ROWS and min(widths) >= VECTOR


def _correlates(x: jax.Array, d: jax.Array, pads: Padding) -> bool:
    fits = x.shape[0] == d.shape[0] and min(_output_size(x.shape[1:3], d.shape[1:3], pads)) > 0
    return fits and _whole_vectors_and_equal_pads(d, pads) and usable("kernel_gradient", x, d)


def _correlate(x: jax.Array, d: jax.Array, pads: Padding) -> jax.Array:
    """The kernel's cotangent [in, height, width, out] as a plain convolution: channels and batch swap their roles."""
    images = lax.optimization_barrier(x.transpose(3, 1, 2, 0))
    kernels = lax.optimization_barrier(d.transpose(1, 2, 0, 3))
    return lax.conv_general_dilated(images, kernels, (1, 1), pads, dimension_numbers=_CONVOLUTION)


def _kernel_shape(x: jax.Array, d: jax.Array, pads: Padding) -> tuple[int, ...]:
    return (*_output_size(x.shape[1:3], d.shape[1:3], pads), x.shape[3], d.shape[3])


def _output_size(size: Sequence[int], window: Sequence[int], pads: Padding) -> tuple[int, ...]:
    """Height and width of the output when a window slides with stride 1 over a padded image."""
    return tuple(n + sum(pad) - k + 1 for n, k, pad in zip(size, window, pads, strict=True))


def _whole_vectors_and_equal_pads(other: jax.Array, pads: Padding) -> bool:
    """Whether the last axis is a multiple of `VECTOR`, and each axis of the image has equal, non-negative pads."""
    return other.shape[-1] % VECTOR == 0 and all(before == after >= 0 for before, after in pads)
