"""The server's secret: what follows from it cannot be predicted by clients, who know the run's seed.

The seed of a deployed run is public, so that clients can draw their own mini-batches and random numbers. Three things
must not follow from it: the privacy noise, which could be subtracted; who takes part in a private round, on which the
accounting relies; and the pseudonyms of clients in logs and reports.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from fedmime.errors import CheckpointError
from fedmime.files import whole_file

_BYTES = 32


class Secret:
    """Random bytes, from which keys for single purposes are derived by HMAC-SHA-256.

    Args:
        value: the bytes.
    """

    def __init__(self, value: bytes) -> None:
        self._value = value

    @classmethod
    def fresh(cls) -> Secret:
        """A new secret."""
        return cls(secrets.token_bytes(_BYTES))

    @classmethod
    def read(cls, path: Path) -> Secret:
        """The secret in a file."""
        value = path.read_bytes()
        if len(value) != _BYTES:
            raise CheckpointError(f"{str(path)!r} must hold the {_BYTES} bytes of a run's secret, got {len(value)}")
        return cls(value)

    def write(self, path: Path) -> None:
        """Write the secret to a file that only the user can read."""
        with whole_file(path, mode=0o600) as temporary:
            temporary.write_bytes(self._value)

    def noise_key(self, key: jax.Array) -> jax.Array:
        """The key of a round's noise, as random as the secret, of the kind and size of the round's public key.

        JAX's default generator has keys of 64 bits, so the noise of one round is as hard to guess as these.
        """
        public = np.asarray(jax.random.key_data(key))
        words = np.frombuffer(self._derived(b"noise", public.tobytes()), np.uint32)[: math.prod(public.shape)]
        return jax.random.wrap_key_data(jnp.asarray(words.reshape(public.shape)), impl=jax.random.key_impl(key))

    @property
    def sampling_seed(self) -> int:
        """A seed for the draw of cohorts."""
        return int.from_bytes(self._derived(b"cohorts")[:8], "little") >> 1  # seeds have 63 bits

    def pseudonym(self, name: str) -> str:
        """What a client is called in logs and reports; whoever has no secret cannot find the name by trying names."""
        return f"client-{self._derived(b'name', name.encode()).hex()[:8]}"

    def _derived(self, purpose: bytes, of: bytes = b"") -> bytes:
        return hmac.digest(self._value, purpose + b"\0" + of, hashlib.sha256)
