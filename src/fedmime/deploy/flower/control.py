"""What the operator of a SuperLink does through its control interface, as Flower's own command `flwr` does it.

The guard lets only this machine reach that interface, so this runs beside the SuperLink.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fedmime.deploy.flower.superlink import PROBE
from fedmime.errors import ClusterError, ConfigError
from fedmime.files import read_object, whole_file

_MODULE = "fedmime_deployed"
_APP: Mapping[str, bytes] = {
    "pyproject.toml": f"""
[project]
name = "fedmime-deployed"
version = "1.0.0"
description = "A run of fedmime"
license = "Apache-2.0"
dependencies = ["flwr>=1.41.0"]

[tool.flwr.app]
publisher = "fedmime"

[tool.flwr.app.components]
serverapp = "{_MODULE}.server:app"
clientapp = "{_MODULE}.client:app"

[tool.flwr.app.config]
session = ""
""".encode(),
    f"{_MODULE}/__init__.py": b"",
    f"{_MODULE}/server.py": b"from fedmime.deploy.flower.launched import server\n\napp = server()\n",
    f"{_MODULE}/client.py": b"from fedmime.deploy.flower.launched import client\n\napp = client()\n",
}
"""The program that Flower gives to nodes: two lines that name what is installed there."""


class Control:
    """A SuperLink's control interface.

    Args:
        address: of the SuperLink, as `host:port`.
        authority: the file with the certificate of the authority behind its own.
    """

    def __init__(self, address: str, authority: Path) -> None:
        self._address, self._authority = address, authority
        self._owners: dict[int, str] = {}  # of keys, by Flower's number of the node
        self._told: Path | None = None

    def tell_owners(self, file: Path) -> None:
        """Write down whose keys are registered, now and whenever that changes, for a ServerApp; see `owners_in`."""
        self._told = file
        self._tell()

    def wait(self, seconds: float, alive: Callable[[], None]) -> None:
        """Wait until the SuperLink serves.

        Args:
            seconds: how long at most.
            alive: raises an error if the SuperLink has ended, and there is nothing to wait for.
        """
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            alive()
            try:
                self._read("/health")
                return
            except urllib.error.HTTPError:  # it serves, whatever it says
                return
            except OSError:
                time.sleep(0.1)
        raise ClusterError(f"flower: the SuperLink at {self._address} does not serve after {seconds:.0f} s")

    def demand_guard(self, most: int) -> None:
        """Make sure that a guard stands before the SuperLink, and that it has this bound.

        Raises:
            ClusterError: there is none. Whoever reaches the port could then start programs here and on nodes.
        """
        try:
            found = json.loads(self._read(PROBE))
        except (OSError, ValueError):
            found = None
        if found != {"most": most}:
            words = f"flower: no guard stands before the SuperLink at {self._address}, so nothing is started"
            raise ClusterError(f"{words}; its version of flwr may be one that fedmime does not know")

    def _read(self, path: str) -> bytes:
        """What the SuperLink says to a plain request."""
        trusted = ssl.create_default_context(cafile=str(self._authority))
        with urllib.request.urlopen(f"https://{self._address}{path}", timeout=5, context=trusted) as response:
            return response.read(1 << 16)

    def register(self, public_key: Path) -> int:
        """Let a node in.

        Args:
            public_key: the file with the public half of its key. It has the name of the client, and the key speaks for
                no other.

        Returns:
            The number by which Flower knows the node.
        """
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from flwr.proto.control_pb2 import RegisterNodeRequest
        from flwr.supercore.primitives.asymmetric import public_key_to_bytes

        try:
            key = serialization.load_ssh_public_key(public_key.read_bytes())
        except (ValueError, UnsupportedAlgorithm):
            key = None
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise ConfigError(f"keys: {str(public_key)!r} holds no public key of a node; fedmime deploy keys makes one")
        with self._client() as client:
            node = client.RegisterNode(RegisterNodeRequest(public_key=public_key_to_bytes(key))).node_id
        self._owners[node] = public_key.stem
        self._tell()
        return node

    def unregister(self, node: int) -> None:
        """Shut a node out: none of its requests is served any more."""
        from flwr.proto.control_pb2 import UnregisterNodeRequest

        with self._client() as client:
            client.UnregisterNode(UnregisterNodeRequest(node_id=node))
        self._owners.pop(node, None)
        self._tell()

    def run(self, session: Path) -> int:
        """Start a run, whose ServerApp reports to a session (see `session.py`); gives Flower's number of it."""
        from flwr.cli.build import build_fab_from_files
        from flwr.common.serde import fab_to_proto, user_config_to_proto
        from flwr.proto.control_pb2 import StartRunRequest
        from flwr.supercore.fab import Fab

        content, _ = build_fab_from_files(_APP)
        app = fab_to_proto(Fab(hashlib.sha256(content).hexdigest(), content, {}))
        config = user_config_to_proto({"session": str(session)})
        with self._client() as client:
            return client.StartRun(StartRunRequest(fab=app, override_config=config)).run_id

    def check(self, run: int) -> None:
        """Raise an error if a run has ended and did not end well."""
        from flwr.proto.control_pb2 import ListRunsRequest

        with self._client() as client:
            status = client.ListRuns(ListRunsRequest(run_id=run)).run_dict[run].status
        if status.status == "finished" and status.sub_status != "completed":
            raise ClusterError(f"flower: the run has {status.sub_status}: {' '.join(status.details.split())[:300]}")

    def _tell(self) -> None:
        if self._told is not None:
            with whole_file(self._told, mode=0o600) as temporary:
                temporary.write_text(json.dumps(self._owners))

    @contextlib.contextmanager
    def _client(self) -> Iterator[Any]:
        """A connection; what goes wrong with it is told in one line."""
        import httpx
        from flwr.supercore.control import ControlHttpClient
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

        client = ControlHttpClient.from_server_address(
            server_address=self._address,
            insecure=False,
            root_certificates=self._authority.read_bytes(),
            interceptors=[RuntimeVersionHttpInterceptor(component_name="fedmime")],
        )
        try:
            yield client
        except httpx.HTTPStatusError as error:
            raise ClusterError(f"flower: the SuperLink refuses: {error.response.text.strip():.200}") from None
        except httpx.HTTPError as error:
            raise ClusterError(f"flower: the SuperLink at {self._address} is lost: {error}") from None
        finally:
            client.close()


def owners_in(file: Path) -> dict[int, str]:
    """Whose keys are registered, by Flower's number of the node, as `Control.tell_owners` has written it."""
    return {int(node): name for node, name in read_object(file).items()}
