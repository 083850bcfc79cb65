"""The server's secret: private, and different for every purpose."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest

import fedmime as fm
from fedmime.deploy.secret import Secret


def test_a_secret_is_private_and_comes_back(tmp_path: Path) -> None:
    secret = Secret.fresh()
    secret.write(tmp_path / "secret")
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600
    again = Secret.read(tmp_path / "secret")
    assert again.pseudonym("a") == secret.pseudonym("a")
    assert again.sampling_seed == secret.sampling_seed
    (tmp_path / "secret").write_bytes(b"short")
    with pytest.raises(fm.CheckpointError, match="32 bytes of a run's secret, got 5"):
        Secret.read(tmp_path / "secret")


@pytest.mark.parametrize("kind", ["threefry2x32", "rbg"])
def test_noise_follows_from_secret_and_round(kind: str) -> None:
    one, other = Secret(bytes(32)), Secret(b"1" * 32)
    keys = [jax.random.key(seed, impl=kind) for seed in (0, 1)]
    found = [each.noise_key(key) for each in (one, other) for key in keys]
    assert all(key.dtype == keys[0].dtype for key in found)
    assert len({tuple(np.asarray(jax.random.key_data(key)).tolist()) for key in [*keys, *found]}) == 6
    repeated = one.noise_key(keys[0])
    assert np.array_equal(jax.random.key_data(repeated), jax.random.key_data(found[0]))


def test_pseudonyms_and_seeds() -> None:
    one, other = Secret(bytes(32)), Secret(b"1" * 32)
    names = [each.pseudonym(name) for each in (one, other) for name in ("c0", "c1", "ü")]
    assert len(set(names)) == 6
    assert all(name.startswith("client-") and len(name) == 15 for name in names)
    assert 0 <= one.sampling_seed < 2**63
    assert one.sampling_seed != other.sampling_seed
