"""What malicious clients send, for experiments and tests of defences.

An attack is an encoder: it replaces the messages of some clients by others and leaves the rest alone. In a chain it
stands where the malicious client departs from the protocol: after a `clip` that it ignores, before a quantizer.

Who is malicious follows from the attack's seed and the client's position in the population alone: a client is an
attacker if the uniform random number of its position, from a counter-based generator with the seed as its key, is less
than `share`. So the set needs no list, is the same in every round, grows with `share` and does not depend on the size
of the population. The number of attackers in it varies around `share` times the population; `attackers` gives the set
to code that prepares data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from fedmime.aggregation.encoder import BROADCAST, Encoded, Encoder, Sender, Shapes
from fedmime.hyperparameters import Number, Value, checked, number, recipe, static
from fedmime.validation import CLOSED_UNIT, LARGEST_SEED, POSITIVE, choice, count, real
from fedmime.vector import Vector, norm

_SCALES = {"sign_flip": 10.0, "scaled": 10.0, "nan": 1.0, "shift": 1.0}
KINDS = tuple(_SCALES)


@recipe
class Attack(Encoder):
    """An attack as a recipe; `attack` explains its arguments."""

    unbiased: ClassVar[bool] = False
    compresses: ClassVar[bool] = False

    kind: str = static()
    share: Value = number(CLOSED_UNIT)
    scale: Value = number(POSITIVE)
    seed: int = static()

    def encode(self, values: list[jax.Array], sender: Sender) -> Encoded:
        if sender.kind == BROADCAST:
            return Encoded(values)
        malicious = _is_attacker(sender.client, self.share, self.seed)
        changed = self._changed(Vector(values)).tree
        return Encoded([jnp.where(malicious, bad, good) for bad, good in zip(changed, values, strict=True)])

    def decode(self, encoded: Encoded, like: Shapes, sender: Sender) -> list[jax.Array]:
        return encoded.values

    def _changed(self, message: Vector) -> Vector:
        """What an attacker sends in place of a message."""
        if self.kind == "nan":
            return message.map(lambda leaf: jnp.full_like(leaf, jnp.nan))
        if self.kind == "shift":
            key = _keys(self.seed)[1]
            draws = [
                jax.random.normal(jax.random.fold_in(key, i), v.shape, v.dtype) for i, v in enumerate(message.tree)
            ]
            direction = Vector(draws)
            return self.scale * norm(message) / norm(direction) * direction
        return (-self.scale if self.kind == "sign_flip" else self.scale) * message


def attack(kind: str, share: Number = 0.2, scale: Number | None = None, seed: int = 0) -> Attack:
    """Malicious clients, as an encoder of updates and gradients.

    Args:
        kind: what attackers send in place of a message m: `"sign_flip"` is −scale · m, `"scaled"` is scale · m, `"nan"`
            is nothing but NaN, and `"shift"` is scale · ‖m‖ · d. The direction d, of norm 1, is drawn from the seed and
            the same for all attackers and rounds, so that they collude without being longer than others.
        share: the probability that a client is an attacker, in [0, 1], or a schedule.
        scale: a positive number, or a schedule; by default 10 for `"sign_flip"` and `"scaled"`, and 1 for `"shift"`.
            `"nan"` does not use it.
        seed: of who attacks, and of the direction d.
    """
    kind = choice("attack", "kind", kind, KINDS)
    seed = count("attack", "seed", seed, most=LARGEST_SEED)
    return checked(Attack(kind, share, _SCALES[kind] if scale is None else scale, seed))


def attackers(n: int, share: float = 0.2, seed: int = 0) -> np.ndarray:
    """Which clients of a population are attackers of `attack(…, share, seed=seed)`.

    Args:
        n: the number of clients.

    Returns:
        Truth values [n].
    """
    n, seed = count("attackers", "n", n), count("attackers", "seed", seed, most=LARGEST_SEED)
    share = real("attackers", "share", share, CLOSED_UNIT)
    return np.asarray(jax.vmap(lambda client: _is_attacker(client, share, seed))(jnp.arange(n, dtype=jnp.int32)))


def flip_labels(columns: Mapping[str, np.ndarray], classes: int, field: str = "y") -> dict[str, np.ndarray]:
    """The examples of a client that lies about its labels: class y of `classes` becomes classes − 1 − y."""
    classes = count("flip_labels", "classes", classes, least=1)
    return {**columns, field: (classes - 1 - columns[field]).astype(columns[field].dtype)}


def _keys(seed: int) -> jax.Array:
    """The keys of who attacks, and of the direction of `"shift"`.

    They are made of all bits of the seed and of a named generator, because `jax.random.key` ignores the upper half of a
    seed where 64-bit numbers are disabled, and its generator is a setting.
    """
    words = jnp.asarray([seed >> 32, seed & 0xFFFFFFFF], jnp.uint32)
    return jax.random.split(jax.random.wrap_key_data(words, impl="threefry2x32"))


def _is_attacker(client: Any, share: Any, seed: int) -> jax.Array:
    """Whether the client at a position of the population is an attacker; the position may be traced."""
    own = jax.random.fold_in(_keys(seed)[0], client)
    return jax.random.uniform(own, dtype=jnp.float32) < jnp.asarray(share, jnp.float32)
