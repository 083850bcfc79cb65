"""The cryptographic building blocks do what the protocol needs, and foreign bytes never crash them."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("flwr")

from fedmime.deploy.secure import primitives
from fedmime.deploy.secure.options import MaskError
from fedmime.deploy.secure.primitives import SEALED_BYTES, SECRET_BYTES, SEED_BYTES, Letter

LETTER = Letter(3, 4, bytes(36), bytes(range(68)))


def test_two_clients_agree_on_keys_that_a_third_does_not_have() -> None:
    a, b, c = (primitives.new_keys() for _ in range(3))
    assert primitives.pair_seed(a, b.public) == primitives.pair_seed(b, a.public)
    assert len({primitives.pair_seed(one, two.public) for one, two in ((a, b), (a, c), (b, c))}) == 3


@pytest.mark.parametrize("length", [SEED_BYTES, SECRET_BYTES])
def test_as_many_shares_as_needed_recover_a_secret_and_fewer_do_not(length: int) -> None:
    secret = bytes(range(1, length + 1))
    shares = primitives.split(secret, 3, 5)
    assert primitives.joined(shares[2:], length) == secret
    assert [primitives.numbered(share, 1) for share in shares] == [False, True, False, False, False]
    for few in (shares[:2], shares[3:]):
        with contextlib.suppress(MaskError):
            assert primitives.joined(few, length) != secret


def test_a_private_key_is_restored_from_its_shares() -> None:
    keys = primitives.new_keys()
    shares = primitives.split(primitives.secret_of(keys), 3, 4)
    assert primitives.restored_keys(primitives.joined(shares[1:], SECRET_BYTES)).public == keys.public


@pytest.mark.parametrize("secret", [bytes(48), b"\xff" * 48])
def test_numbers_that_are_no_private_key_are_refused(secret: bytes) -> None:
    with pytest.raises(MaskError, match="do not belong together"):
        primitives.restored_keys(secret)


def test_a_sealed_letter_opens_with_its_key_only() -> None:
    key, other = (primitives.agreed_key(primitives.new_keys(), primitives.new_keys().public) for _ in range(2))
    sealed = primitives.seal(key, LETTER)
    assert len(sealed) == SEALED_BYTES
    assert primitives.opened(key, sealed) == LETTER
    with pytest.raises(MaskError, match="changed on its way"):
        primitives.opened(other, sealed)


def test_a_letter_with_other_lengths_is_refused() -> None:
    key = primitives.agreed_key(primitives.new_keys(), primitives.new_keys().public)
    with pytest.raises(MaskError, match="shares must have 36 and 68 bytes"):
        primitives.opened(key, primitives.seal(key, LETTER._replace(seed=bytes(37), secret=bytes(67))))


@settings(deadline=None)
@given(st.binary(max_size=400))
def test_foreign_bytes_are_refused(data: bytes) -> None:
    key = b"A" * 43 + b"="
    with pytest.raises(MaskError):
        primitives.opened(key, data)
    with contextlib.suppress(MaskError):
        primitives.point(data)


def test_masks_are_the_key_stream_of_aes_in_counter_mode() -> None:
    """The first block is the encryption of zero: a test vector of FIPS 197's AES-128 with the zero key."""
    stream = primitives.random_bytes(bytes(16), 40)
    assert stream[:16].tobytes().hex() == "66e94bd4ef8a2c3b884cfa59ca342b2e"
    assert len(stream) == 40
    assert not np.array_equal(stream[:16], stream[16:32])
