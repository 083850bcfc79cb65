"""What both sides of a secure run agree on before it begins."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from fedmime.deploy.messages import MOST_CLIENTS
from fedmime.errors import ConfigError

WORD = 32  # bits of the widest integers that are added


class MaskError(ValueError):
    """What arrived does not belong to this stage of a masked sum, or answering it would reveal too much."""


@dataclasses.dataclass(frozen=True)
class SecureSum:
    """Sums of masked messages, in which no client's own message can be seen.

    A server offers these numbers. A client that was started with its own insists on them: see `agreed`.

    Args:
        bits: of each entry of a client's message, from 8 to 30. Entries are multiples of C / (2^(bits − 1) − 1), where
            C is the norm that messages are clipped to.
        minimum: the smallest number of clients whose sum may be revealed, at least 3.
        threshold: the fraction of a group, more than a half, that has to stay to the end of an exchange.
    """

    bits: int = 20
    minimum: int = 3
    threshold: float = 2 / 3

    def __post_init__(self) -> None:
        from fedmime.validation import Range, count, real  # which imports JAX

        majority = Range(lambda v: 0.5 < v <= 1, "lie in (0.5, 1]")
        count("secure", "bits", self.bits, least=8, most=30)
        count("secure", "minimum", self.minimum, least=3, most=MOST_CLIENTS)
        real("secure", "threshold", self.threshold, majority)

    def needed(self, clients: int) -> int:
        """t, how many clients of a group must stay, and how many shares recover a secret.

        More than half of them, whatever rounding does: of two disjoint parts of a group only one can reach it.
        """
        return max(self.minimum, clients // 2 + 1, math.ceil(self.threshold * clients))

    def width(self, clients: int) -> int:
        """Bits of integers that hold the sum of so many clients' entries, with its sign."""
        return self.bits + (clients - 1).bit_length()

    def check_group(self, clients: int) -> None:
        """Refuse groups that are too small to hide anybody or too large to be added.

        Raises:
            ConfigError: the number of clients is not accepted.
        """
        most = min(MOST_CLIENTS, 1 << (WORD - self.bits))
        if not self.minimum <= clients <= most:
            accepted = f"{self.minimum} to {most} clients with minimum={self.minimum} and bits={self.bits}"
            raise ConfigError(f"secure: a group must have {accepted}, got {clients}")


def fields_of(secure: SecureSum | None) -> dict[str, Any] | None:
    """The numbers as JSON can hold them; None where nothing is masked."""
    return None if secure is None else dataclasses.asdict(secure)


def of_fields(fields: Mapping[str, Any] | None) -> SecureSum | None:
    """What `fields_of` has written.

    Raises:
        ConfigError: somebody else has.
    """
    names = [field.name for field in dataclasses.fields(SecureSum)]
    if fields is not None and sorted(fields) != sorted(names):
        raise ConfigError(f"secure: its fields must be {', '.join(names)}, got {', '.join(map(repr, fields))[:80]}")
    return None if fields is None else SecureSum(**fields)


def agreed(own: SecureSum | None, offered: SecureSum | None) -> SecureSum | None:
    """How a client's messages are masked in a server's run: as the server offers, if the client accepts that.

    Bits are the server's choice, since they decide how exact a sum is and not what it tells.

    Args:
        own: what the client insists on; None accepts every offer.
        offered: the server's; None masks nothing.

    Raises:
        ConfigError: the client would be protected less than it insists on.
    """
    if own is None:
        return offered
    if offered is None:
        raise ConfigError("secure: this client sends nothing without masks, and the server asks for none")
    for name in ("minimum", "threshold"):
        least, given = getattr(own, name), getattr(offered, name)
        if given < least:
            raise ConfigError(f"secure: this client insists on {name}={least:g} or more, the server has {given:g}")
    return offered


def check_secure(owner: str, value: Any) -> SecureSum | None:
    """Check the argument `secure` of a server or a node."""
    from fedmime.validation import made

    words = "be fm.deploy.SecureSum(…) or None"
    return None if value is None else made(owner, "secure", value, SecureSum, words)
