"""Options of `fedmime deploy` for secure aggregation: what a server asks for, and what a client insists on."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from fedmime.errors import ConfigError

if TYPE_CHECKING:
    from fedmime.deploy.secure.options import SecureSum


@dataclasses.dataclass(frozen=True)
class Masked:
    """What a server asks for."""

    secure: bool = False
    """Have clients mask their messages: the server learns sums over clients, and no single message. It needs
    aggregation.clip."""
    secure_bits: int | None = None
    """Secure: bits of each number of a client's message, 8 to 30; by default 20."""
    secure_minimum: int | None = None
    """Secure: the smallest number of clients whose sum may be revealed; by default 3."""
    secure_threshold: float | None = None
    """Secure: the share of a cohort, more than a half, that has to stay to the end of an exchange; by default 2/3."""


@dataclasses.dataclass(frozen=True)
class Insistent:
    """What a client insists on."""

    require_secure: bool = False
    """Send nothing without masks: take part in secure runs only. Otherwise the server decides."""
    secure_minimum: int | None = None
    """Require secure: the smallest number of clients that a sum must have to be revealed; by default 3."""
    secure_threshold: float | None = None
    """Require secure: the smallest share of a cohort that must stay to the end of an exchange; by default 2/3."""


def masks(args: Masked) -> SecureSum | None:
    """The masks that a server asks for."""
    numbers = {"bits": args.secure_bits, "minimum": args.secure_minimum, "threshold": args.secure_threshold}
    return _made(args.secure, "--secure", numbers)


def insisted(args: Insistent) -> SecureSum | None:
    """The masks that a client insists on."""
    numbers = {"minimum": args.secure_minimum, "threshold": args.secure_threshold}
    return _made(args.require_secure, "--require-secure", numbers)


def _made(wanted: bool, option: str, numbers: dict[str, Any]) -> SecureSum | None:
    from fedmime.deploy.secure.options import SecureSum

    given = {name: value for name, value in numbers.items() if value is not None}
    if not wanted and given:
        name, value = next(iter(given.items()))
        raise ConfigError(f"secure: --secure-{name} {value:g} needs {option}, too")
    return SecureSum(**given) if wanted else None
