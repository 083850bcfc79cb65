"""The eyes of the test on two machines: does it see what is not TLS?"""

import ssl
import struct
from pathlib import Path

import pytest

from deploy.flower import capture


def frame(data: bytes, number: int = 1000, source: int = 40000, target: int = 9092) -> bytes:
    """An Ethernet frame with a TCP segment."""
    tcp = struct.pack(">HHIIBBHHH", source, target, number, 0, 5 << 4, 0, 0, 0, 0) + data
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(tcp), 0, 0, 64, 6, 0, b"\x0a\x4d\0\1", b"\x0a\x4d\0\2")
    return bytes(12) + b"\x08\x00" + ip + tcp


def written(path: Path, *frames: bytes) -> Path:
    path.write_bytes(b"".join(struct.pack("<I", len(each)) + each for each in frames))
    return path


def handshake() -> tuple[bytes, bytes]:
    """What a client of TLS says first, as Python's own does."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="server")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    hello = outgoing.read()
    return hello, b"\x17\x03\x03\x00\x20" + bytes(range(32))


def test_segments_are_put_together_in_order_and_only_once(tmp_path: Path) -> None:
    hello, data = handshake()
    whole = hello + data
    pieces = [frame(whole[at : at + 40], 1000 + at) for at in range(0, len(whole), 40)]
    again = [pieces[0], *reversed(pieces), pieces[1]]
    ((_, stream),) = capture.streams(written(tmp_path / "link", *again)).items()
    assert stream == whole
    assert [kind for kind, _ in capture.records(stream)] == [capture.HANDSHAKE, capture.APPLICATION_DATA]
    with pytest.raises(AssertionError, match="has a gap"):
        capture.streams(written(tmp_path / "link", *pieces[:2], *pieces[3:]))


@pytest.mark.parametrize("where", ["first", "between", "last"])
def test_plain_text_is_noticed_wherever_it_is(where: str) -> None:
    hello, data = handshake()
    plain = b"POST /v1/fleet/pull-messages HTTP/1.1\r\n"
    stream = {"first": plain + hello, "between": hello + plain + data, "last": hello + data + plain}[where]
    with pytest.raises(AssertionError, match="there is no TLS record"):
        capture.records(stream)


def test_frames_that_are_not_tcp_are_noticed(tmp_path: Path) -> None:
    udp = bytearray(frame(b"a model"))
    udp[23] = 17
    arp = bytes(12) + b"\x08\x06" + bytes(28)
    neighbour = bytes(12) + b"\x86\xdd" + bytes([0x60, 0, 0, 0, 0, 8, 58, 255]) + bytes(40)
    link = written(tmp_path / "link", arp, frame(b"x"), neighbour, bytes(udp))
    assert capture.strangers(link) == [bytes(udp)]
