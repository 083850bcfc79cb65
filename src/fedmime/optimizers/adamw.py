"""AdamW: Adam with weight decay that is decoupled from the gradient."""

from __future__ import annotations

from typing import ClassVar

from fedmime.errors import ConfigError
from fedmime.hyperparameters import Number, Value, checked, number, recipe
from fedmime.optimizers.adam import Adam
from fedmime.optimizers.base import BaseOptimizer, Statistics
from fedmime.validation import NON_NEGATIVE
from fedmime.vector import Vector


@recipe
class AdamW(BaseOptimizer):
    """AdamW as a recipe; `adamw` explains its numbers. The statistics are those of Adam with bias correction.

    The direction is that of Adam plus λ y, and so a function of the point y that a step starts from. U(g, s) has no
    such argument: a frozen base is an affine map of the gradient that is fixed for a round. So AdamW is not `linear`,
    has no `affine` form, and is only applied with lookahead, which knows y.
    """

    linear: ClassVar[bool] = False

    adam: Adam
    weight_decay: Value = number(NON_NEGATIVE)

    def init(self, x: Vector) -> Statistics:
        return self.adam.init(x)

    def update(self, g: Vector, s: Statistics) -> Vector:
        raise ConfigError("adamw: weight decay needs the point of a step, which only apply='lookahead' knows")

    def track(self, g: Vector, s: Statistics) -> Statistics:
        return self.adam.track(g, s)

    def ahead(self, g: Vector, s: Statistics, x: Vector) -> Vector:
        return self.adam.ahead(g, s, x) + self.weight_decay * x


def adamw(
    beta1: Number = 0.9,
    beta2: Number = 0.999,
    eps: Number = 1e-8,
    weight_decay: Number = 0.01,
    initial: Number = 0.0,
    floor: Number = 0.0,
) -> AdamW:
    r"""AdamW: Adam with bias correction, and weight decay that no gradient scales.

    A step from y is $y \gets y - \eta\,(\hat m / \max(\sqrt{\hat v} + \epsilon, \text{floor}) + \lambda y)$ with the
    bias-corrected averages $\hat m$ and $\hat v$ of `adam`, both of which include the gradient at y. The decay depends
    on y, so that AdamW is applied with lookahead only.

    Args:
        beta1: $\beta_1$ in [0, 1).
        beta2: $\beta_2$ in [0, 1).
        eps: $\epsilon$, added to every denominator.
        weight_decay: $\lambda$; a step shrinks y by the factor $1 - \eta\lambda$.
        initial: $v_0$, the accumulator before the first gradient.
        floor: least denominator.

    Reference: Loshchilov and Hutter, 2019, https://arxiv.org/abs/1711.05101
    """
    adam = Adam(beta1=beta1, beta2=beta2, eps=eps, initial=initial, floor=floor, bias_correction=True)
    return checked(AdamW(adam, weight_decay))
