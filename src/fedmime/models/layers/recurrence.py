r"""A long short-term memory layer that does as little as possible inside its loop over time.

$z_t = x_t W + h_{t-1} U + b$, split into $i, f, g, o$; then $c_t = \sigma(f)\, c_{t-1} + \sigma(i) \tanh(g)$,
$h_t = \sigma(o) \tanh(c_t)$.

The products $x_t W$ of all steps are one matrix product before the loop. The backward loop only collects
$\partial z_t$; each weight gradient is then one product over time and batch, where autodiff would add up one small
product per step. $\sigma(z) = \frac12 + \frac12 \tanh(z/2)$, so that the four gates take one vectorised tanh. Where
`fedmime.kernels` has kernels, both loops run there.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedmime.kernels import ops
from fedmime.models.layers.linear import inner_products, outer_sum

Pair = tuple[jax.Array, jax.Array]
Triple = tuple[jax.Array, jax.Array, jax.Array]
Quadruple = tuple[jax.Array, jax.Array, jax.Array, jax.Array]
Saved = tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]


@jax.custom_vjp
def lstm(x: jax.Array, w: jax.Array, u: jax.Array, b: jax.Array) -> jax.Array:
    """The outputs of an LSTM layer that starts from h = c = 0.

    Args:
        x: inputs [time, batch, in].
        w: input weights [in, 4 hidden], gates in the order i, f, g, o.
        u: recurrent weights [hidden, 4 hidden].
        b: biases [4 hidden].

    Returns:
        Outputs h [time, batch, hidden].
    """
    return _run(x, w, u, b)[0]


def _run(x: jax.Array, w: jax.Array, u: jax.Array, b: jax.Array) -> Triple:
    """Outputs h and cells c [time, batch, hidden], and the activated gates [time, batch, 4 hidden]."""
    return _unroll((_flat(x) @ w).reshape(*x.shape[:2], -1), u, b)


@jax.custom_jvp
def _unroll(z: jax.Array, u: jax.Array, b: jax.Array) -> Triple:
    """The loop over time for z = x W [time, batch, 4 hidden], by a C kernel where there is one."""
    return ops.lstm_forward(z, u, b) or _unroll_xla(z, u, b)


@_unroll.defjvp
def _unroll_jvp(point: Triple, tangent: Triple) -> tuple[Triple, Triple]:
    """The forward derivative, always by XLA: kernels have none."""
    return jax.jvp(_unroll_xla, point, tangent)


def _unroll_xla(z: jax.Array, u: jax.Array, b: jax.Array) -> Triple:
    """The loop over time in JAX."""
    half = np.repeat(np.array([0.5, 0.5, 1.0, 0.5], z.dtype), len(u))
    offset = np.repeat(np.array([0.5, 0.5, 0.0, 0.5], z.dtype), len(u))

    def step(before: Pair, z: jax.Array) -> tuple[Pair, Triple]:
        """One time step: the gates, the new cell and the new output.

        `half` and `offset` turn tanh into sigmoid for i, f, o.
        """
        h, c = before
        gates = jnp.tanh((z + b + h @ u) * half) * half + offset
        i, f, g, o = jnp.split(gates, 4, axis=-1)
        c = f * c + i * g
        h = o * jnp.tanh(c)
        return (h, c), (h, c, gates)

    zero = jnp.zeros((z.shape[1], len(u)), z.dtype)
    return lax.scan(step, (zero, zero), z)[1]


def _forward(x: jax.Array, w: jax.Array, u: jax.Array, b: jax.Array) -> tuple[jax.Array, Saved]:
    """Outputs, and what the backward pass needs."""
    h, c, gates = _run(x, w, u, b)
    return h, (x, w, u, h, c, gates)


def _backward(saved: Saved, d: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """The cotangents of x, w, u and b for the cotangent d [time, batch, hidden] of the outputs."""
    x, w, u, h, c, gates = saved
    dz = _flat(_unroll_backward(d, gates, c, u))
    dx, dw, du = inner_products(dz, w), outer_sum(_flat(x), dz), outer_sum(_flat(_before(h)), dz)
    return dx.reshape(x.shape), dw, du, dz.sum(0)


@jax.custom_jvp
def _unroll_backward(d: jax.Array, gates: jax.Array, c: jax.Array, u: jax.Array) -> jax.Array:
    """The backward loop: the cotangent of z [time, batch, 4 hidden], by a C kernel where there is one.

    Args:
        d: cotangent of the outputs [time, batch, hidden].
        gates: activated gates [time, batch, 4 hidden].
        c: cells [time, batch, hidden].
        u: recurrent weights [hidden, 4 hidden].
    """
    dz = ops.lstm_backward(d, gates, c, u)
    return _unroll_backward_xla(d, gates, c, u) if dz is None else dz


@_unroll_backward.defjvp
def _unroll_backward_jvp(point: Quadruple, tangent: Quadruple) -> Pair:
    """The forward derivative of the backward loop, always by XLA, for Hessian-vector products."""
    return jax.jvp(_unroll_backward_xla, point, tangent)


def _unroll_backward_xla(d: jax.Array, gates: jax.Array, c: jax.Array, u: jax.Array) -> jax.Array:
    """The backward loop in JAX."""
    # XLA repacks a transposed right operand at every step; one transposed copy for all steps is cheaper.
    transposed = lax.optimization_barrier(u.T)

    def step(carry: Pair, now: Quadruple) -> tuple[Pair, jax.Array]:
        """One time step backwards; the carry are the cotangents of h and c that come from the next step."""
        dh, dc = carry
        d, gates, c, before = now
        i, f, g, o = jnp.split(gates, 4, axis=-1)
        tanh_c = jnp.tanh(c)
        dh = dh + d
        dc = dc + dh * o * (1 - tanh_c * tanh_c)
        dz = [dc * g * i * (1 - i), dc * before * f * (1 - f), dc * i * (1 - g * g), dh * tanh_c * o * (1 - o)]
        dz = jnp.concatenate(dz, axis=-1)
        return (dz @ transposed, dc * f), dz

    zero = jnp.zeros(d.shape[1:], d.dtype)
    return lax.scan(step, (zero, zero), (d, gates, c, _before(c)), reverse=True)[1]


def _before(a: jax.Array) -> jax.Array:
    """The array [time, ...] one time step earlier, zeros at the first step."""
    return jnp.concatenate([jnp.zeros_like(a[:1]), a[:-1]])


def _flat(a: jax.Array) -> jax.Array:
    """An array [time, batch, n] as [time * batch, n]."""
    return a.reshape(-1, a.shape[-1])


lstm.defvjp(_forward, _backward)
