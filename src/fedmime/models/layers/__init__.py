"""Layers as pure functions of arrays, written so that they run fast inside compiled loops.

They take their weights as arguments, so they drop into a flax or equinox module as well as into `from_functions`::

    class Net(nnx.Module):
        def __init__(self, *, rngs):
            self.kernel = nnx.Param(nnx.initializers.glorot_uniform()(rngs.params(), (3, 3, 1, 32)))
            self.dense = nnx.Linear(13 * 13 * 32, 62, rngs=rngs)

        def __call__(self, x):
            a = jax.nn.relu(max_pool2x2(conv2d(x, self.kernel[...])))
            return self.dense(a.reshape(a.shape[0], -1))

`conv2d`, `dense`, `lstm` and `max_pool2x2` define their own reverse-mode derivative. Gradients and
Hessian-vector products taken forward over reverse work; `jax.jvp` of the function itself does not.
"""

from fedmime.models.layers.convolution import conv2d
from fedmime.models.layers.linear import dense, embedding, outer_sum
from fedmime.models.layers.noise import dropout
from fedmime.models.layers.pooling import max_pool2x2
from fedmime.models.layers.recurrence import lstm

__all__ = [
    "conv2d",
    "dense",
    "dropout",
    "embedding",
    "lstm",
    "max_pool2x2",
    "outer_sum",
]
