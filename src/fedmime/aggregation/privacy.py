"""Client-level differential privacy: clipped messages, Gaussian noise on their sum, and a clipping norm that adapts.

Each client of a cohort clips its message to norm C. The server divides the sum by a fixed number m, the expected size
of a cohort, and not by how many clients reported, and adds noise with standard deviation z C / m to every entry. So
drop-out reduces what a round learns, and never the noise. All clients must have the same weight: with others, one
client could move the sum by more than C. `accounting.py` says what ε this amounts to.

The noise is drawn as floating-point numbers, which is sound as a model but no defence against an attacker who studies
their lowest bits.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedmime.aggregation import accounting
from fedmime.aggregation.clipping import Clip
from fedmime.aggregation.encoder import GRADIENT, KINDS, UPDATE
from fedmime.errors import ConfigError
from fedmime.hyperparameters import Value, recipe
from fedmime.validation import BOUND, NON_NEGATIVE, POSITIVE, Range, real

QUANTILE = Range(lambda v: 0 < v < 1, "lie in (0, 1)")


class Norms(NamedTuple):
    """The clipping norms of a round, one for each kind of message; with adaptive clipping, state of the server."""

    update: Any
    gradient: Any

    def of(self, kind: str) -> Any:
        """The norm for messages of a kind."""
        return {UPDATE: self.update, GRADIENT: self.gradient}[kind]


@recipe
class Gaussian:
    """The Gaussian mechanism as a recipe; `gaussian` explains its numbers."""

    clip: Value
    gradient_clip: Value
    noise_multiplier: Value  # z of a release; None until `resolve` has found it for target_epsilon
    delta: Value
    target_epsilon: Value
    quantile: Value  # None without adaptive clipping
    quantile_rate: Value
    quantile_noise: Value  # None until `resolve` knows the cohort

    def resolve(
        self,
        sampling: accounting.Sampling,
        rounds: int,
        releases: int = 1,
        gradient_rounds: int = 0,
        gradient_releases: int = 1,
    ) -> Gaussian:
        """The recipe with all noise known, for a run of so many rounds; see `accounting.noise_for`."""
        z = self.noise_multiplier
        if z is None:
            z = accounting.noise_for(
                self.target_epsilon, self.delta, sampling, rounds, releases, gradient_rounds, gradient_releases
            )
        b = self.quantile_noise
        if self.quantile is not None and b is None:
            b = max(sampling.cohort / 20, z) if z else 0.0
        return _consistent(dataclasses.replace(self, noise_multiplier=z, target_epsilon=None, quantile_noise=b))

    def norms(self) -> Norms:
        """The clipping norms of the first round, and of all rounds without adaptive clipping."""
        return Norms(self.clip, self.gradient_clip)

    def clipping(self, norms: Norms | None = None) -> Clip:
        """The encoder that clips to the norms of a round, by default those of the first."""
        return Clip(*(norms or self.norms()))

    def message_noise(self) -> Any:
        r"""The multiplier of the noise on messages, $z_\Delta = (z^{-2} - (2 \sigma_b)^{-2})^{-1/2}$.

        Adaptive clipping also releases a count. The messages get somewhat more noise, so that both together are
        as private as a single release with z.
        """
        z, b = self.noise_multiplier, self.quantile_noise
        if self.quantile is None:
            return z
        return z / jnp.sqrt(jnp.where(z > 0, 1 - jnp.square(z / jnp.where(z > 0, 2 * b, 1.0)), 1.0))

    def add_noise(self, message: Any, key: jax.Array, kind: str, norm: Any, denominator: Any) -> Any:
        """A mean of clipped messages with noise on every entry; without noise it keeps every bit.

        Args:
            message: the sum of the clients' clipped messages, divided by `denominator`; a pytree of arrays.
            key: the random key of the round; the kinds of messages get independent noise from the same key.
            kind: `"update"` or `"gradient"`.
            norm: C, to which the messages were clipped.
            denominator: m, which does not depend on who reported.
        """
        leaves, tree = jax.tree.flatten(message)
        z = self.message_noise()
        keys = jax.random.split(jax.random.fold_in(key, KINDS.index(kind)), max(len(leaves), 1))
        return jax.tree.unflatten(
            tree, [_noisy(leaf, own, z, norm, denominator) for leaf, own in zip(leaves, keys, strict=False)]
        )

    def noisy_fraction(self, unclipped: Any, reported: Any, key: jax.Array, kind: str, denominator: Any) -> jax.Array:
        r"""The share of clients whose message was within the clipping norm, with noise $\sigma_b$ on their number.

        Every client counts as 1/2 if it was and as -1/2 if not, so that one client moves the number by half.

        Args:
            unclipped: how many messages were within the norm.
            reported: how many messages there were.
            key: the random key of the round, the same as for `add_noise`.
        """
        noise = jax.random.normal(jax.random.fold_in(key, len(KINDS) + KINDS.index(kind)))
        total = jnp.asarray(unclipped, noise.dtype) - jnp.asarray(reported, noise.dtype) / 2
        return (total + self.quantile_noise * noise) / denominator + 0.5

    def next_norm(self, norm: Any, noisy_fraction: Any) -> jax.Array:
        r"""The clipping norm of the next round, $C \exp(-\eta_C (\tilde b - \gamma))$."""
        return norm * jnp.exp(-self.quantile_rate * (noisy_fraction - self.quantile))


def gaussian(
    clip: float,
    noise_multiplier: float | None = None,
    delta: float = 1e-5,
    *,
    gradient_clip: float | None = None,
    target_epsilon: float | None = None,
    quantile: float | None = None,
    quantile_rate: float = 0.2,
    quantile_noise: float | None = None,
) -> Gaussian:
    r"""Client-level $(\varepsilon, \delta)$-differential privacy by the Gaussian mechanism.

    Args:
        clip: C, the largest norm of a client's update; with `quantile`, of the first round.
        noise_multiplier: z; the sum of a cohort's messages gets noise of standard deviation z C. Zero gives no privacy.
        delta: δ, well below 1 / population.
        gradient_clip: C for a client's full gradient, if the algorithm asks for one; by default the same.
        target_epsilon: ε that the whole run may reach, instead of `noise_multiplier`.
        quantile: γ; C moves to the γ-quantile of the clients' norms (adaptive clipping).
        quantile_rate: $\eta_C$, how fast.
        quantile_noise: $\sigma_b$, standard deviation of the noise on the number of clients within C; more than z / 2.
            By default a twentieth of the cohort, and at least z.

    Reference: Andrew et al., 2021, https://arxiv.org/abs/1905.03871, for adaptive clipping
    """
    owner = "gaussian"
    if (noise_multiplier is None) == (target_epsilon is None):
        both = "neither" if noise_multiplier is None else "both"
        raise ConfigError(f"{owner}: give either noise_multiplier or target_epsilon, got {both}")

    def optional(name: str, value: float | None, accepted: Range) -> float | None:
        return None if value is None else real(owner, name, value, accepted)

    if quantile is None and quantile_noise is not None:
        raise ConfigError(f"{owner}: quantile_noise is for adaptive clipping; give quantile, too, such as 0.5")
    norm = real(owner, "clip", clip, BOUND)
    return _consistent(
        Gaussian(
            norm,
            norm if gradient_clip is None else real(owner, "gradient_clip", gradient_clip, BOUND),
            optional("noise_multiplier", noise_multiplier, NON_NEGATIVE),
            real(owner, "delta", delta, accounting.DELTA),
            optional("target_epsilon", target_epsilon, POSITIVE),
            optional("quantile", quantile, QUANTILE),
            real(owner, "quantile_rate", quantile_rate, POSITIVE),
            optional("quantile_noise", quantile_noise, POSITIVE),
        )
    )


def _consistent(mechanism: Gaussian) -> Gaussian:
    """Check what depends on more than one of the numbers."""
    z, b = mechanism.noise_multiplier, mechanism.quantile_noise
    for name in ("clip", "gradient_clip"):
        if getattr(mechanism, name) == math.inf and (z != 0 or mechanism.quantile is not None):
            raise ConfigError(f"gaussian: {name} must be finite with noise or quantile, got inf")
    if z and b is not None and 2 * b <= z:
        raise ConfigError(f"gaussian: quantile_noise must exceed noise_multiplier / 2 = {z / 2:.6g}, got {b!r}")
    return mechanism


def _noisy(leaf: jax.Array, key: jax.Array, z: Any, norm: Any, denominator: Any) -> jax.Array:
    """An array with noise of standard deviation z C / m on every entry."""
    kind = jnp.promote_types(leaf.dtype, jnp.float32)
    noise = jax.random.normal(key, leaf.shape, kind)
    deviation = jnp.asarray(z * norm / denominator, kind)
    return jnp.where(deviation > 0, (leaf.astype(kind) + deviation * noise).astype(leaf.dtype), leaf)
