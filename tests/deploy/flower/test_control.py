"""The operator's half of a SuperLink: nothing is started at one without a guard, and whose keys are registered."""

from __future__ import annotations

import contextlib
import http.server
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedmime.deploy.flower import keys
from fedmime.deploy.flower.control import Control, owners_in
from fedmime.errors import ClusterError, ConfigError

pytest.importorskip("flwr")

GUARDED = b'{"most": 1000}'


@pytest.fixture
def says(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Control]:
    """The control of a server that says one thing to everybody, or that there is nothing."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(404 if request.param is None else 200)
            self.end_headers()
            self.wfile.write(request.param or b"")

        def log_message(self, *_: object) -> None:
            pass

    keys.make_server(tmp_path / "server", ["127.0.0.1"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server" / keys.CERTIFICATE, tmp_path / "server" / keys.SERVER_KEY)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield Control(f"127.0.0.1:{server.server_port}", tmp_path / "server" / keys.AUTHORITY)
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("says", [GUARDED], indirect=True)
def test_a_guard_that_answers(says: Control) -> None:
    says.wait(10, lambda: None)
    says.demand_guard(1000)
    with pytest.raises(ClusterError, match="no guard stands before the SuperLink"):
        says.demand_guard(2000)


@pytest.mark.parametrize("says", [None, b"", b"{}", b"a page", b"[]"], indirect=True)
def test_a_superlink_without_a_guard(says: Control) -> None:
    says.wait(10, lambda: None)  # it serves
    with pytest.raises(ClusterError, match=r"no guard stands before the SuperLink at 127\.0\.0\.1"):
        says.demand_guard(1000)


def test_one_that_is_not_there(tmp_path: Path) -> None:
    keys.make_server(tmp_path / "server", ["127.0.0.1"])
    found = Control("127.0.0.1:1", tmp_path / "server" / keys.AUTHORITY)
    with pytest.raises(ClusterError, match="does not serve after 0 s"):
        found.wait(0.3, lambda: None)


class Registering(Control):
    """A SuperLink that takes every key."""

    count = 0

    @contextlib.contextmanager
    def _client(self) -> Iterator[Any]:
        def register(request: Any) -> Any:
            assert request.public_key
            self.count += 1
            return SimpleNamespace(node_id=2**60 + self.count)

        yield SimpleNamespace(RegisterNode=register, UnregisterNode=lambda request: None)


def test_who_owns_which_key_is_written_down(tmp_path: Path) -> None:
    control, told = Registering("localhost:1", tmp_path), tmp_path / "owners.json"
    first, second, third = (keys.make_node(tmp_path / "keys", name) for name in ("a", "b.c", "d"))
    one = control.register(first.with_name("a.pub"))
    control.tell_owners(told)
    assert owners_in(told) == {one: "a"}
    assert told.stat().st_mode & 0o777 == 0o600
    two = control.register(second.with_name("b.c.pub"))
    assert owners_in(told) == {one: "a", two: "b.c"}
    control.unregister(one)
    assert owners_in(told) == {two: "b.c"}
    with pytest.raises(ConfigError, match="holds no public key"):
        control.register(third)
    assert owners_in(told) == {two: "b.c"}
