"""What both sides of a secure run agree on before it begins."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from fedmime.deploy.messages import MOST_CLIENTS
from fedmime.errors import ConfigError

WORD = 32  # bits of the widest integers that are added


class MaskError(ValueError):
    """What arrived does not belong to this stage of a masked sum, or answering it would reveal too much."""


@dataclasses.dataclass(frozen=True)
class SecureSum:
    """Sums of masked messages, in which no client's own message can be seen.

    Clients hold these numbers themselves: a server cannot lower them.

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


def check_secure(owner: str, value: Any) -> SecureSum | None:
    """Check the argument `secure` of a server or a node."""
    from fedmime.validation import made

    words = "be fm.deploy.SecureSum(…) or None"
    return None if value is None else made(owner, "secure", value, SecureSum, words)
