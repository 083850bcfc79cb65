"""The cryptography of secure aggregation, none of it our own.

Keys, key agreement, encryption and secret sharing are those of Flower's secure aggregation: elliptic-curve
Diffie-Hellman on P-384 with HKDF, Fernet, and Shamir's scheme. Masks come from AES in counter mode, of the
`cryptography` package that Flower is built on. Flower's own generator of masks is not used: it folds each seed into 32
bits, which can be searched, and seeds a Mersenne Twister with them, whose output can be predicted.

Every function that takes foreign bytes raises `MaskError` for those it cannot use.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedmime.deploy.secure.options import MaskError
from fedmime.errors import ConfigError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

PUBLIC_BYTES = 49  # a compressed point of P-384
SECRET_BYTES = 48  # a private key of P-384
SEED_BYTES = 16  # of a mask of one's own: a key of AES-128
_INDEX_BYTES = 4  # before every share, its index
SEED_SHARE_BYTES = _INDEX_BYTES + 32  # shares come in blocks of 16 bytes, of which the last is padded
SECRET_SHARE_BYTES = _INDEX_BYTES + 64
_LETTER_BYTES = 20 + SEED_SHARE_BYTES + SECRET_SHARE_BYTES  # of sender, receiver, a length and two shares
SEALED_BYTES = 4 * -(-(57 + _LETTER_BYTES // 16 * 16 + 16) // 3)  # a letter as a Fernet token


class KeyPair(NamedTuple):
    """A key pair of one client for one exchange."""

    private: EllipticCurvePrivateKey
    public: bytes
    """[49] the compressed point."""


class Letter(NamedTuple):
    """What one client gives another one for safekeeping, sealed on its way through the server."""

    sender: int
    receiver: int
    seed: bytes
    """A share of the seed of the sender's own mask."""
    secret: bytes
    """A share of the private key from which the sender's pairwise masks follow."""


def check_installed() -> None:
    """Refuse secure runs where Flower is missing, before any message is sent.

    Raises:
        ConfigError: Flower's secure aggregation cannot be imported.
    """
    try:
        import flwr.common.secure_aggregation.crypto.shamir
        import flwr.common.secure_aggregation.crypto.symmetric_encryption
        import flwr.common.secure_aggregation.secaggplus_utils
        import flwr.supercore.primitives.asymmetric  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"secure: masks need Flower's primitives: pip install 'fedmime[deploy]' ({error})") from None


def new_keys() -> KeyPair:
    """A fresh key pair."""
    from flwr.supercore.primitives.asymmetric import generate_key_pairs

    return _pair(generate_key_pairs()[0])


def restored_keys(secret: bytes) -> KeyPair:
    """The key pair of a private key that was recovered from its shares."""
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        return _pair(ec.derive_private_key(int.from_bytes(secret, "big"), ec.SECP384R1()))
    except ValueError:
        raise MaskError("the shares of a private key do not belong together") from None


def secret_of(keys: KeyPair) -> bytes:
    """The private key as the bytes that are shared [48]."""
    return keys.private.private_numbers().private_value.to_bytes(SECRET_BYTES, "big")


def _pair(private: Any) -> KeyPair:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    public = private.public_key().public_bytes(Encoding.X962, PublicFormat.CompressedPoint)
    return KeyPair(private, public)


def agreed_key(own: KeyPair, public: bytes) -> bytes:
    """The key that only the owners of the two pairs can compute; the same for both."""
    from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key

    return generate_shared_key(own.private, point(public))


def point(public: bytes) -> EllipticCurvePublicKey:
    """The public key that some bytes stand for."""
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        return ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP384R1(), public)
    except ValueError:
        raise MaskError("a public key is no point of the curve") from None


def new_seed() -> bytes:
    """The seed of a client's own mask."""
    return os.urandom(SEED_BYTES)


def pair_seed(own: KeyPair, public: bytes) -> bytes:
    """The seed of the mask that two clients share."""
    return base64.urlsafe_b64decode(agreed_key(own, public))


def split(secret: bytes, needed: int, clients: int) -> list[bytes]:
    """Shares of a secret, one for each client, of which any `needed` recover it and fewer tell nothing."""
    from flwr.common.secure_aggregation.crypto.shamir import create_shares

    return create_shares(secret, needed, clients)


def numbered(share: bytes, place: int) -> bool:
    """Whether a share carries the index of the client that holds it, the one at a place of the group."""
    return share[:_INDEX_BYTES] == (place + 1).to_bytes(_INDEX_BYTES, "little")


def joined(shares: Sequence[bytes], length: int) -> bytes:
    """The secret of so many bytes.

    Args:
        shares: exactly as many as are needed, all `numbered` correctly.
        length: bytes of the secret.
    """
    from flwr.common.secure_aggregation.crypto.shamir import combine_shares

    try:
        secret = combine_shares(list(shares))
    except ValueError:
        raise MaskError("the shares of a secret do not belong together") from None
    if len(secret) != length:
        raise MaskError(f"a shared secret must have {length} bytes, got {len(secret)}")
    return secret


def seal(key: bytes, letter: Letter) -> bytes:
    """A letter, encrypted and authenticated [`SEALED_BYTES`]."""
    from flwr.common.secure_aggregation.crypto.symmetric_encryption import encrypt
    from flwr.common.secure_aggregation.secaggplus_utils import share_keys_plaintext_concat

    return encrypt(key, share_keys_plaintext_concat(*letter))


def opened(key: bytes, sealed: bytes) -> Letter:
    """The letter that was sealed with a key."""
    from cryptography.fernet import InvalidToken
    from flwr.common.secure_aggregation.crypto.symmetric_encryption import decrypt
    from flwr.common.secure_aggregation.secaggplus_utils import share_keys_plaintext_separate

    try:
        text = decrypt(key, sealed)
    except InvalidToken:
        raise MaskError("a sealed share was changed on its way or is meant for another exchange") from None
    letter = Letter(*share_keys_plaintext_separate(text))
    if (len(letter.seed), len(letter.secret)) != (SEED_SHARE_BYTES, SECRET_SHARE_BYTES):
        raise MaskError(f"shares must have {SEED_SHARE_BYTES} and {SECRET_SHARE_BYTES} bytes")
    return letter


def random_bytes(seed: bytes, count: int) -> np.ndarray:
    """So many pseudo-random bytes that follow from a seed of 16 or 32 bytes, which is used for one mask only."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    stream = Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(stream.update(bytes(count)), np.uint8)
