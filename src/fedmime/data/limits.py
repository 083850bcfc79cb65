"""How much a file may make us read: checked before memory is touched, so that a small file cannot claim 8 TB."""

from __future__ import annotations

import dataclasses

from fedmime.errors import ConfigError, DataError


@dataclasses.dataclass(frozen=True)
class Limits:
    """Upper bounds on what one file may hold. Raise them for data that really is this large."""

    client_bytes: int = 2**28  # of one client, decoded
    file_bytes: int = 2**40  # of one unpacked file
    download_bytes: int = 2**35  # of one downloaded file
    clients: int = 10_000_000

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if getattr(self, field.name) < 1:
                raise ConfigError(f"limits: {field.name} must be positive, got {getattr(self, field.name)!r}")

    def check_client(self, claimed: int, where: str) -> None:
        """Raise if a client claims more bytes than one may hold."""
        if claimed > self.client_bytes:
            raise DataError(f"{where} claims {claimed:,} bytes; accepted are at most {self.client_bytes:,} per client")

    def check_clients(self, found: int, where: str) -> None:
        """Raise if there are more clients than a file may hold."""
        if found > self.clients:
            raise DataError(f"{where} holds {found:,} clients; accepted are at most {self.clients:,}")


DEFAULT = Limits()
