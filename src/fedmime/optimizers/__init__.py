r"""Base optimizers $\mathcal{B} = (U, V)$, one file each.

U turns a gradient and the statistics into a direction, V updates the statistics. Mime applies U at every local step
with the server's statistics, and V once a round on the server. `custom` and `from_optax` make a base optimizer of your
own.
"""

from fedmime import devices
from fedmime.optimizers.adafactor import adafactor
from fedmime.optimizers.adagrad import adagrad
from fedmime.optimizers.adam import adam, rmsprop
from fedmime.optimizers.adamw import adamw
from fedmime.optimizers.base import BaseOptimizer, Statistics, custom
from fedmime.optimizers.momentum import momentum
from fedmime.optimizers.nesterov import nesterov
from fedmime.optimizers.optax import from_optax
from fedmime.optimizers.sgd import sgd
from fedmime.optimizers.sm3 import sm3
from fedmime.optimizers.yogi import yogi

devices.use_all_cores()  # before anything starts JAX

__all__ = [
    "BaseOptimizer",
    "Statistics",
    "adafactor",
    "adagrad",
    "adam",
    "adamw",
    "custom",
    "from_optax",
    "momentum",
    "nesterov",
    "rmsprop",
    "sgd",
    "sm3",
    "yogi",
]
