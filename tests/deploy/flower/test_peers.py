"""Whose process is at the other end of a connection: a real one, and rows of the kernel's tables."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedmime.deploy.flower.peers import End, same_user


@pytest.fixture(params=["127.0.0.1", "::1", "::ffff:127.0.0.1"])
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[End, End]]:
    """Both ends of a connection, as a server knows them."""
    host = request.param
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        try:
            listener.bind((host, 0))
        except OSError:
            pytest.skip(f"this machine has no {host}")
        listener.listen()
        with socket.create_connection(listener.getsockname()[:2]), listener.accept()[0] as connection:
            yield connection.getpeername()[:2], connection.getsockname()[:2]


def test_this_user_is_recognised(ends: tuple[End, End]) -> None:
    assert same_user(*ends)


def test_another_user_is_not(ends: tuple[End, End], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert not same_user(*ends)


def test_ends_that_nobody_has(ends: tuple[End, End]) -> None:
    (host, port), server = ends
    assert not same_user((host, port), (host, port))
    assert not same_user(server, (host, 1))


def row(user: int, inode: int) -> str:
    start = "0: 0100007F:0005 0100007F:2384 01 00000000:00000000 00:00000000 00000000"
    return f"header\n   {start} {user:5}        0 {inode} 1 0 100 0 0 10 0\n"


@pytest.mark.parametrize(("user", "inode", "same"), [(0, 7, True), (0, 0, False), (1000, 7, False)])
def test_a_closed_socket_is_nobodys(
    user: int, inode: int, same: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel shows sockets without a process as those of user 0, whoever had opened them."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    (tmp_path / "tcp").write_text(row(user, inode))
    assert same_user(("127.0.0.1", 5), ("127.0.0.1", 0x2384), tmp_path) is same


def test_where_the_kernel_does_not_tell_nobody_is_trusted(tmp_path: Path) -> None:
    assert not same_user(("127.0.0.1", 5), ("127.0.0.1", 0x2384), tmp_path)
