"""The operator's half of a SuperLink: nothing is started at one without a guard."""

import http.server
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedmime.deploy.flower import keys
from fedmime.deploy.flower.control import Control
from fedmime.errors import ClusterError

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
