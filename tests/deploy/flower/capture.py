"""A program that records what TCP carries on an interface, and what the record says: is it TLS, and nothing else?

It uses Linux' packet sockets, so that no other program is needed.
"""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

Flow = tuple[bytes, int, bytes, int]
_ALL, _ARP, _IPV4, _IPV6, _TCP, _ICMPV6 = 0x0003, 0x0806, 0x0800, 0x86DD, 6, 58
_TLS = range(20, 25)  # change cipher spec, alert, handshake, application data, heartbeat
HANDSHAKE, APPLICATION_DATA = 22, 23
TLS_1_3 = b"\x00\x2b\x00\x02\x03\x04"
"""The extension of a server's first handshake message by which it chooses this version."""


def record(interface: str, out: Path) -> None:
    """Write every frame of an interface to a file, each with its length, until this process is ended."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL)) as source, out.open("wb", 0) as file:
        source.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 26)
        source.bind((interface, 0))
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            frame = source.recv(1 << 18)
            file.write(struct.pack("<I", len(frame)) + frame)


def streams(capture: Path) -> dict[Flow, bytes]:
    """What each direction of each connection carried, put together in order."""
    pieces: dict[Flow, dict[int, bytes]] = {}
    for flow, number, data in _segments(capture):
        known = pieces.setdefault(flow, {})
        known[number] = max(known.get(number, b""), data, key=len)
    found = {}
    for flow, known in pieces.items():
        start = min(known)
        stream = bytearray()
        for number in sorted(known):
            at = number - start
            assert at <= len(stream), f"the capture of {flow} has a gap"
            stream[at:] = known[number] if at + len(known[number]) > len(stream) else stream[at:]
        found[flow] = bytes(stream)
    return found


def records(stream: bytes) -> list[tuple[int, bytes]]:
    """The TLS records that a stream is made of, kind and content; an error if it is made of anything else."""
    found, at = [], 0
    while at < len(stream):
        assert at + 5 <= len(stream), f"at {at} a TLS record is cut off"
        kind, version, length = struct.unpack_from(">BHH", stream, at)
        assert kind in _TLS, f"at {at} there is no TLS record: {stream[at : at + 16]!r}"
        assert version in (0x0301, 0x0303), f"at {at} a record has version {version:#x}"
        assert length <= (1 << 14) + 256, f"at {at} a record has {length} bytes"
        found.append((kind, stream[at + 5 : at + 5 + length]))
        at += 5 + length
    return found


def strangers(capture: Path) -> list[bytes]:
    """Frames that are neither TCP over IPv4 nor how two machines find each other's addresses."""
    return [frame for frame in _frames(capture) if not _is_tcp(frame) and not _finds_addresses(frame)]


def _is_tcp(frame: bytes) -> bool:
    return len(frame) >= 34 and _type(frame) == _IPV4 and frame[23] == _TCP


def _finds_addresses(frame: bytes) -> bool:
    """Whether it is ARP, or ICMPv6, which may follow an option for routers that multicast reports have."""
    if _type(frame) == _IPV6 and len(frame) >= 62:
        return frame[20] == _ICMPV6 or (frame[20] == 0 and frame[54] == _ICMPV6)
    return _type(frame) == _ARP


def _type(frame: bytes) -> int:
    return struct.unpack_from(">H", frame, 12)[0]


def _segments(capture: Path) -> Iterator[tuple[Flow, int, bytes]]:
    """Flow, sequence number and data of every TCP segment that carries something."""
    for frame in filter(_is_tcp, _frames(capture)):
        packet = frame[14 : 14 + struct.unpack_from(">H", frame, 16)[0]]
        header = (packet[0] & 15) * 4
        source, target, number = struct.unpack_from(">HHI", packet, header)
        data = packet[header + (packet[header + 12] >> 4) * 4 :]
        if data:
            yield (packet[12:16], source, packet[16:20], target), number, data


def _frames(capture: Path) -> Iterator[bytes]:
    """The frames that were recorded; the last one may have been cut off."""
    text, at = capture.read_bytes(), 0
    while at + 4 <= len(text):
        (length,) = struct.unpack_from("<I", text, at)
        if at + 4 + length <= len(text):
            yield text[at + 4 : at + 4 + length]
        at += 4 + length


if __name__ == "__main__":
    record(sys.argv[1], Path(sys.argv[2]))
