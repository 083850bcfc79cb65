"""Whose process is at the other end of a TCP connection within this machine, as the kernel's tables say.

Every socket of the machine has a row in `/proc/net/tcp` or `/proc/net/tcp6`, with its two addresses and the user that
opened it. The row of a socket that its process has closed is kept for a while and names no user any more, so it never
counts as anybody's.
"""

from __future__ import annotations

import ipaddress
import os
import struct
from pathlib import Path

End = tuple[str, int]
"""An address and a port."""
_TABLES = {4: ("tcp", "tcp6"), 6: ("tcp6",)}  # a socket for both families has its IPv4 connections in the second
_USER, _INODE = 7, 9  # columns


def same_user(client: End, server: End, tables: Path = Path("/proc/net")) -> bool:
    """Whether the process that has opened a connection belongs to this process's user.

    Args:
        client: the end of the process in question.
        server: the other end.
        tables: the directory with the kernel's tables.

    Returns:
        False, too, where the kernel does not tell, as on systems without these tables.
    """
    ends = [_plain(host) for host, _ in (client, server)]
    ports = client[1], server[1]
    for name in _TABLES[ends[0].version]:
        wanted = [_written(end, port, name) for end, port in zip(ends, ports, strict=True)]
        try:
            lines = (tables / name).read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            if wanted[0] in line and (row := line.split())[1:3] == wanted:
                return int(row[_USER]) == os.geteuid() and row[_INODE] != "0"
    return False


def _plain(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """An address; one of IPv4 that is written as IPv6 as what it is."""
    found = ipaddress.ip_address(host.partition("%")[0])
    return getattr(found, "ipv4_mapped", None) or found


def _written(end: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int, table: str) -> str:
    """An end of a connection as a table writes it: words of the machine's byte order, in hexadecimal digits."""
    packed = end.packed if table == "tcp" or end.version == 6 else b"\0" * 10 + b"\xff\xff" + end.packed
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return f"{''.join(f'{word:08X}' for word in words)}:{port:04X}"
