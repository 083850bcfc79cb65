"""Fetching, against a server on this machine: resume, damage, other versions, no network."""

import hashlib
import io
import itertools
import os
import socket
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from data.published import images, write_hdf5
from fedmime.cli.main import main
from fedmime.data import catalog, emnist
from fedmime.data.download import download, fetch
from fedmime.data.limits import Limits
from fedmime.errors import ConfigError, DataError

BODY = bytes(range(256)) * 4000
SHA = hashlib.sha256(BODY).hexdigest()


class Server:
    """What the handler serves and how badly; `ranges` records what was asked for."""

    def __init__(self) -> None:
        self.files = {"/data.bin": BODY}
        self.etag = '"one"'
        self.cut: list[int] = []  # how many bytes to send before hanging up, one entry a request
        self.ranges: list[str | None] = []
        self.status: list[int] = []  # failures to answer with, one entry a request
        self.honour_range = True
        self.tell_length = True
        self.redirects: dict[str, str] = {}
        self.extra: dict[str, str] = {}  # headers
        self.address = ""


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.ranges.append(self.headers.get("Range"))
            if state.status:
                self.send_error(state.status.pop(0))
                return
            if self.path in state.redirects:
                self.send_response(302)
                self.send_header("Location", state.redirects[self.path])
                self.end_headers()
                return
            if self.path not in state.files:
                self.send_error(404)
                return
            body, start = state.files[self.path], 0
            asked = self.headers.get("Range")
            if asked and state.honour_range and self.headers.get("If-Range") == state.etag:
                start = int(asked.removeprefix("bytes=").rstrip("-"))
                if start >= len(body):
                    self.send_error(416)
                    return
            self.send_response(206 if start else 200)
            for name, value in (
                {"Content-Length": str(len(body) - start)} if state.tell_length else state.extra
            ).items():
                self.send_header(name, value)
            self.send_header("ETag", state.etag)
            self.end_headers()
            end = start + state.cut.pop(0) if state.cut else len(body)
            self.wfile.write(body[start:end])

        def log_message(self, *args: object) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.address = f"http://127.0.0.1:{httpd.server_port}/"
    thread = threading.Thread(target=httpd.serve_forever, args=(0.02,))
    thread.start()
    yield state
    httpd.shutdown()
    thread.join()
    httpd.server_close()


def test_a_file_arrives_with_progress(server: Server, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    path = download(f"{server.address}data.bin", tmp_path / "d", SHA, lambda *args: seen.append(args))
    assert path.read_bytes() == BODY
    assert seen[-1] == ("d", len(BODY), len(BODY))
    assert os.listdir(tmp_path) == ["d"]
    download(f"{server.address}data.bin", tmp_path / "d", SHA)
    assert len(server.ranges) == 1  # the second call found it there


def test_a_broken_connection_is_continued(server: Server, tmp_path: Path) -> None:
    server.cut = [300_000, 400_000]
    path = download(f"{server.address}data.bin", tmp_path / "d", SHA, pause=0)
    assert path.read_bytes() == BODY
    assert server.ranges == [None, "bytes=300000-", "bytes=700000-"]


def test_a_later_call_continues(server: Server, tmp_path: Path) -> None:
    server.cut = [500_000]
    with pytest.raises(DataError, match="500,000 bytes are kept and will be continued"):
        download(f"{server.address}data.bin", tmp_path / "d", SHA, attempts=1)
    assert not (tmp_path / "d").exists()
    assert download(f"{server.address}data.bin", tmp_path / "d", SHA).read_bytes() == BODY
    assert server.ranges[-1] == "bytes=500000-"


@pytest.mark.parametrize("honour", [True, False])
def test_another_version_or_no_ranges_start_over(server: Server, tmp_path: Path, honour: bool) -> None:
    server.cut = [500_000]
    with pytest.raises(DataError):
        download(f"{server.address}data.bin", tmp_path / "d", SHA, attempts=1)
    server.honour_range = honour
    server.etag = '"two"'
    assert download(f"{server.address}data.bin", tmp_path / "d", SHA).read_bytes() == BODY


def test_a_finished_part_is_only_checked(server: Server, tmp_path: Path) -> None:
    (tmp_path / "d.part").write_bytes(BODY)
    (tmp_path / "d.part.json").write_text('{"version": "\\"one\\""}')
    assert download(f"{server.address}data.bin", tmp_path / "d", SHA).read_bytes() == BODY


def test_a_wrong_file_is_not_kept(server: Server, tmp_path: Path) -> None:
    server.files["/data.bin"] = BODY[:-1] + b"?"
    with pytest.raises(DataError, match=r"sha256 differs.*nothing was kept"):
        download(f"{server.address}data.bin", tmp_path / "d", SHA)
    assert os.listdir(tmp_path) == []


def test_server_errors(server: Server, tmp_path: Path) -> None:
    server.status = [503, 500]
    assert download(f"{server.address}data.bin", tmp_path / "d", SHA, pause=0).read_bytes() == BODY
    with pytest.raises(DataError, match="answers 404"):
        download(f"{server.address}nothing", tmp_path / "n", SHA, pause=0)


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/hostname",
        "ftp://host/",
        "host",
        "",
        "http://",
        "http://[",
        "http://host:port/",
        "http://host:99999/",
        "http://host/a b",
        "http://host/\n",
        "http://höst/",
        f"http://{'a' * 70}.org/",
        "http://a..b/",
    ],
)
def test_addresses_that_make_no_sense(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Refused at once, as a mistake in the call, and not tried four times."""
    with pytest.raises(ConfigError, match="accepted are http and https addresses") as caught:
        download(url, tmp_path / "n", SHA)
    assert "\n" not in str(caught.value)
    words = ["data", "fetch", "emnist", "--data-dir", str(tmp_path), "--quiet", f"--base-url={url or 'x'}"]
    assert main(words) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("target", ["ftp://127.0.0.1/a", "file:///etc/hostname", "http://[", "//:0/"])
def test_redirects_lead_to_http_only(target: str, server: Server, tmp_path: Path) -> None:
    server.redirects["/data.bin"] = target
    with pytest.raises(DataError, match="the server redirects elsewhere") as caught:
        download(f"{server.address}data.bin", tmp_path / "d", SHA, attempts=1)
    assert "\n" not in str(caught.value)
    server.redirects["/data.bin"] = "/other.bin"
    server.files["/other.bin"] = BODY
    assert download(f"{server.address}data.bin", tmp_path / "d", SHA).read_bytes() == BODY


@pytest.mark.parametrize("told", [True, False])
def test_files_that_are_too_large_are_not_kept(told: bool, server: Server, tmp_path: Path) -> None:
    server.tell_length = told
    with pytest.raises(DataError, match=r"accepted are at most 1,000,000; nothing was kept"):
        download(f"{server.address}data.bin", tmp_path / "d", SHA, limits=Limits(download_bytes=1_000_000))
    assert os.listdir(tmp_path) == []
    assert len(server.ranges) == 1


@pytest.mark.parametrize("length", ["9" * 5000, "²", "-1", "many"])
def test_lengths_that_make_no_sense_are_ignored(length: str, server: Server, tmp_path: Path) -> None:
    server.tell_length, server.extra = False, {"Content-Length": length}
    assert download(f"{server.address}data.bin", tmp_path / "d", SHA, attempts=1).read_bytes() == BODY


def test_the_deadline_ends_what_still_arrives(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock on which every look takes an hour."""
    hours = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: 3600.0 * next(hours), sleep=lambda seconds: None)
    monkeypatch.setattr("fedmime.data.download.time", clock)
    with pytest.raises(DataError, match=r"not finished before the deadline; [\d,]+ bytes are kept and will be"):
        download(f"{server.address}data.bin", tmp_path / "d", SHA, deadline=2 * 3600)
    assert len(server.ranges) == 1
    monkeypatch.undo()
    assert download(f"{server.address}data.bin", tmp_path / "d", SHA).read_bytes() == BODY


def test_the_deadline_ends_waiting_for_an_answer(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        with pytest.raises(DataError, match="no answer before the deadline"):
            download(f"{address}data.bin", tmp_path / "d", SHA, timeout=5, deadline=0.05)


def test_without_a_network_the_message_says_what_to_do(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(DataError, match=r"cannot fetch.*pass data_dir.*handwriting") as caught:
        fetch_from(f"http://127.0.0.1:{port}/", tmp_path)
    assert "\n" not in str(caught.value)


def fetch_from(address: str, folder: Path) -> None:
    download(f"{address}data.bin", folder / "d", SHA, attempts=2, pause=0)


def archive(folder: Path, extra: dict[str, bytes] | None = None) -> bytes:
    train = write_hdf5(folder / "train.h5", images({"a": 2}))
    test = write_hdf5(folder / "test.h5", images({"a": 1}))
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:bz2") as tar:
        tar.add(train, "fed_emnist_train.h5")
        tar.add(test, "fed_emnist_test.h5")
        for name, content in (extra or {}).items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def publish(server: Server, monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    """Serve an archive as if it were the published one."""
    server.files["/fed_emnist.tar.bz2"] = body
    known = catalog.DATASETS["emnist"]
    digest = hashlib.sha256(body).hexdigest()
    mine = catalog.Archive("fed_emnist.tar.bz2", digest, known.archives[0].members)
    changed = catalog.Published(known.name, known.about, known.splits, known.database, (mine,))
    monkeypatch.setitem(catalog.DATASETS, "emnist", changed)


def test_fetch_unpacks_pins_and_is_then_content(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(server, monkeypatch, archive(tmp_path, {"../escaped": b"x", "other": b"y"}))
    folder = tmp_path / "cache"
    files = fetch("emnist", folder, base_url=server.address)
    assert [path.name for path in files] == ["fed_emnist_train.h5", "fed_emnist_test.h5"]
    assert sorted(os.listdir(folder)) == ["SHA256SUMS", "fed_emnist_test.h5", "fed_emnist_train.h5"]
    assert not (tmp_path / "escaped").exists()
    assert emnist(folder).sizes.tolist() == [2]
    fetch("emnist", folder, base_url=server.address)
    assert len(server.ranges) == 1
    damaged = bytearray(files[0].read_bytes())
    damaged[2000] ^= 1
    files[0].write_bytes(damaged)
    with pytest.raises(DataError, match="sha256 differs"):
        emnist(folder)
    fetch("emnist", folder, base_url=server.address)
    assert emnist(folder).sizes.tolist() == [2]


def test_fetch_of_an_archive_without_its_files(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:bz2"):
        pass
    publish(server, monkeypatch, buffer.getvalue())
    with pytest.raises(DataError, match="the archive lacks"):
        fetch("emnist", tmp_path / "cache", base_url=server.address)
    publish(server, monkeypatch, b"not an archive")
    with pytest.raises(DataError, match="not a sound archive"):
        fetch("emnist", tmp_path / "cache", base_url=server.address)


def test_an_unknown_name_lists_the_known(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown data set 'mnist'; accepted are emnist"):
        fetch("mnist", tmp_path)
