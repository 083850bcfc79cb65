"""A convolution whose gradients are as fast inside compiled loops as outside.

XLA:CPU uses its fast convolution routine only for convolutions in a plain form: batch first, channels last, no reversed
or dilated operand. Autodiff produces other forms, and inside a loop body XLA does not simplify them (the kernel
gradient of a layer from 32 to 64 channels took 326 ms instead of 2.5 ms). Here both gradients are written as plain
convolutions. Where `fedmime.kernels` has a kernel, it runs instead of XLA's routine.
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax

from fedmime.kernels import ops
from fedmime.kernels.ops import Padding
from fedmime.models.layers.bilinear import bilinear

Pair = tuple[jax.Array, jax.Array]


def conv2d(
    x: jax.Array, w: jax.Array, b: jax.Array | None = None, padding: Literal["VALID", "SAME"] = "VALID"
) -> jax.Array:
    r"""A convolution with stride 1, $z_{n,p,o} = \sum_{q,c} x_{n,p+q,c}\, w_{q,c,o} + b_o$.

    Args:
        x: images [batch, height, width, in].
        w: kernel [height, width, in, out].
        b: biases [out], or None.
        padding: `"VALID"` adds none, `"SAME"` adds zeros so that the output is as large as the input.

    Returns:
        Images [batch, height', width', out].
    """
    if padding not in ("VALID", "SAME"):
        raise ValueError(f"conv2d: padding must be 'VALID' or 'SAME', got {padding!r}")
    height, width = w.shape[:2]
    pads = ((0, 0), (0, 0)) if padding == "VALID" else (_same(height), _same(width))
    z = _convolution(x, w, pads)
    return z if b is None else z + b


def _same(size: int) -> tuple[int, int]:
    """The zeros before and after an axis so that a kernel of this size keeps its length."""
    return (size - 1) // 2, size // 2


@bilinear
def _plain(x: jax.Array, kernel: jax.Array, pads: Padding) -> jax.Array:
    """A convolution in the plain form, with forward derivatives."""
    return ops.convolve(x, kernel, pads)


def _forward(x: jax.Array, w: jax.Array, pads: Padding) -> tuple[jax.Array, Pair]:
    """The convolution, and what the backward pass needs."""
    return _plain(x, w, pads), (x, w)


def _backward(pads: Padding, saved: Pair, d: jax.Array) -> Pair:
    """The cotangents of x and w for the cotangent d of the output."""
    x, w = saved
    return input_gradient(d, w, pads), kernel_gradient(x, d, pads)


_convolution = jax.custom_vjp(_plain, nondiff_argnums=(2,))  # the padding is no array
_convolution.defvjp(_forward, _backward)


def input_gradient(d: jax.Array, kernel: jax.Array, pads: Padding) -> jax.Array:
    """The cotangent of the images x for the cotangent d of the output.

    It is d convolved with the kernel rotated by 180 degrees, input and output channels exchanged. The barrier keeps XLA
    from fusing the rotation into the convolution, which would leave the plain form.
    """
    (top, bottom), (left, right) = pads
    height, width = kernel.shape[0] - 1, kernel.shape[1] - 1
    turned = lax.optimization_barrier(jnp.flip(kernel, (0, 1)).transpose(0, 1, 3, 2))
    return _plain(d, turned, ((height - top, height - bottom), (width - left, width - right)))


@bilinear
def kernel_gradient(x: jax.Array, d: jax.Array, pads: Padding) -> jax.Array:
    """The cotangent [height, width, in, out] of the kernel, summed over the batch.

    It is x convolved with d, where channels take the place of the batch and the batch that of the channels.
    """
    return ops.kernel_gradient(x, d, pads)
