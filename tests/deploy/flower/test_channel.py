"""Messages between processes of one user: whole, bounded, and from nobody else."""

import os
import socket
import struct
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmime.deploy.flower import channel


@given(st.lists(st.binary(max_size=5000), max_size=5))
def test_messages_arrive_as_they_were_sent(messages: list[bytes]) -> None:
    one, other = socket.socketpair()
    with one, other:
        for message in messages:
            channel.send(one, message)
        assert [channel.receive(other) for _ in messages] == messages


def test_a_large_message_arrives_through_a_path_of_any_length(tmp_path: Path) -> None:
    directory = tmp_path / ("long" * 50)
    directory.mkdir()
    data = os.urandom(5_000_000)
    with channel.listen(directory / "socket") as listener:
        assert (directory / "socket").stat().st_mode & 0o777 == 0o600

        def echo() -> None:
            connection, _ = listener.accept()
            with connection:
                channel.peer(connection)
                channel.send(connection, channel.receive(connection))

        thread = threading.Thread(target=echo)
        thread.start()
        with channel.connect(directory / "socket", 20) as connection:
            assert channel.peer(connection) == (os.getpid(), os.geteuid())
            channel.send(connection, data)
            assert channel.receive(connection) == data
        thread.join()


def test_what_is_announced_is_not_believed() -> None:
    one, other = socket.socketpair()
    with one, other:
        one.sendall(struct.pack("<Q", 1 << 60))
        with pytest.raises(ValueError, match="1152921504606846976 bytes was announced, accepted are at most 100"):
            channel.receive(other, 100)
        one.sendall(struct.pack("<Q", 1 << 30) + b"little")  # a gigabyte is not set aside for six bytes
        one.close()
        with pytest.raises(ConnectionError, match="closed"):
            channel.receive(other)


def test_other_users_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with channel.listen(tmp_path / "socket"):
        monkeypatch.setattr(os, "geteuid", lambda: 123456)
        with pytest.raises(PermissionError, match=f"process {os.getpid()} of user"):
            channel.connect(tmp_path / "socket", 5)


def test_a_path_is_used_again_after_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    channel.listen(path).close()
    with pytest.raises(ConnectionError):
        channel.connect(path, 5)
    with channel.listen(path), channel.connect(path, 5):
        pass
