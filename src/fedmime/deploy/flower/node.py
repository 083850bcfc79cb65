"""A node in one process: it holds the client's data, and talks to the SuperLink itself, as a SuperNode does.

Flower's own SuperNode runs the program that the server sends, in a new process for every message. This one runs nothing
that anybody sends: it answers our messages, refuses all others, and needs some hundredths of a second for it instead of
seconds. It speaks the same protocol, with TLS and the node's key, so a server does not see the difference, and both
kinds can be in one cohort.

It outlives its server. When the SuperLink is lost or does not know the node (any more), it tries again.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fedmime.deploy.flower import records
from fedmime.deploy.flower.channel import MOST
from fedmime.deploy.flower.client_app import ACTION
from fedmime.deploy.flower.grid import refuse_arrays
from fedmime.deploy.flower.worker import Order
from fedmime.deploy.protocol import Node
from fedmime.errors import ClusterError, ConfigError
from fedmime.files import read_object

_SHORTEST, _LONGEST, _GROWTH = 0.05, 2.0, 1.4  # seconds between two looks for a message
_AGAIN = 2.0  # seconds before a lost SuperLink is tried again
_BEAT, _EXPECTED = 4.0, 10.0  # seconds between two signs of life, and within which the SuperLink expects one
_RAISED, _UNKNOWN = 2, 0  # Flower's codes of errors
_STALLED = 30.0  # seconds without a record of a message that was announced, after which its sender is given up
_LOG = logging.getLogger("fedmime.node")


class FleetNode:
    """A node that answers the messages of a SuperLink.

    Args:
        node: what answers.
        address: of the SuperLink, as `host:port`.
        authority: the file with the certificate of the authority behind the SuperLink's.
        key: the file with the private half of the node's key.
        patience: seconds for which a lost SuperLink, or one that refuses the key, is tried again.
    """

    def __init__(self, node: Node, address: str, authority: Path, key: Path, patience: float) -> None:
        self._node, self._address, self._authority, self._patience = node, address, authority, patience
        self._key = _private_key(key)
        self._client: Any = None
        self._named: Any = None
        self._heard = time.monotonic()  # when the SuperLink last answered
        refuse_arrays()

    def serve(self) -> None:
        """Answer messages for as long as there is a SuperLink.

        Raises:
            ClusterError: there has been none for longer than the patience.
        """
        said = ""
        while True:
            try:
                with self._connected():
                    _LOG.info("connected to %s", self._address)
                    said = ""
                    self._answer_all()
            except ClusterError as error:
                if time.monotonic() - self._heard > self._patience:
                    raise
                if str(error) != said:
                    said = str(error)
                    _LOG.warning("%s; trying again", said)
                time.sleep(_AGAIN)

    @contextlib.contextmanager
    def _connected(self) -> Iterator[None]:
        """Be let in by the SuperLink, and show it signs of life."""
        from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest
        from flwr.proto.node_pb2 import Node as Named
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
        from flwr.supercore.primitives.asymmetric import public_key_to_bytes
        from flwr.supernode.fleet_http_client import FleetHttpClient
        from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

        public = self._key.public_key()
        signed = [RuntimeVersionHttpInterceptor(component_name="SuperNode"), NodeAuthHttpInterceptor(self._key, public)]
        trusted, over = self._authority.read_bytes(), threading.Event()
        with FleetHttpClient.from_server_address(self._address, False, trusted, signed) as self._client:
            request = ActivateNodeRequest(public_key=public_key_to_bytes(public), heartbeat_interval=_EXPECTED)
            with self._told():
                self._named = Named(node_id=self._client.ActivateNode(request).node_id)
            threading.Thread(target=self._beat, args=(over,), daemon=True).start()
            try:
                yield
            finally:  # one that leaves without a word can come back only when signs of life have been missed
                over.set()
                with contextlib.suppress(ClusterError), self._told():
                    self._client.DeactivateNode(DeactivateNodeRequest(node_id=self._named.node_id))

    def _beat(self, over: threading.Event) -> None:
        """Show signs of life until the end; what goes wrong is noticed elsewhere."""
        from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest

        request = SendNodeHeartbeatRequest(node=self._named, heartbeat_interval=_EXPECTED)
        while not over.wait(_BEAT):
            with contextlib.suppress(ClusterError), self._told():
                self._client.SendNodeHeartbeat(request)

    def _answer_all(self) -> None:
        """Answer one message after another. The longer there was none, the longer is the pause between two looks."""
        pause = _SHORTEST
        while True:
            reply = None
            with self._told():
                reply = self._next()
            if reply is None:
                time.sleep(pause)
                pause = min(pause * _GROWTH, _LONGEST)
            else:
                pause = _SHORTEST
                with self._told():
                    self._deliver(reply)

    def _next(self) -> Any:
        """The reply to the next message to the node; None if there is none now."""
        import httpx
        from flwr.common.serde import message_from_proto
        from flwr.proto.fleet_pb2 import PullMessagesRequest
        from flwr.supercore.inflatable.inflatable_protobuf_utils import make_confirm_message_received_fn_protobuf
        from flwr.supercore.inflatable.inflatable_utils import ObjectPullError

        found = self._client.PullMessages(PullMessagesRequest(node=self._named))
        if not found.messages_list:
            return None
        message, tree = message_from_proto(found.messages_list[0]), found.message_object_trees[0]
        run = message.metadata.run_id
        confirm = make_confirm_message_received_fn_protobuf(self._client.ConfirmMessageReceived, self._named, run)
        if message.metadata.message_type != f"query.{ACTION}":  # nothing that it holds is fetched
            confirm(tree.object_id)
            return _refusal(message, _UNKNOWN, "this node answers messages of fedmime only")
        try:
            content = self._content(run, tree, confirm)
        except (httpx.HTTPError, ObjectPullError):
            raise
        except Exception as error:  # arrays, for example, which this process refuses to inflate
            _LOG.warning("a message cannot be read: %s: %s", type(error).__name__, error)
            return _refusal(message, _RAISED, "the message holds what no message of fedmime does")
        return _reply(self._node, message, content)

    def _content(self, run: int, tree: Any, confirm: Callable[[str], None]) -> Any:
        """What a message holds."""
        from flwr.app import Message
        from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
        from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree

        pull = _impatient(make_pull_object_fn_protobuf(self._client.PullObject, self._named, run))
        return pull_and_inflate_object_from_tree(tree, pull, confirm, return_type=Message).content

    def _deliver(self, reply: Any) -> None:
        """Announce a reply, and send those of its records that the SuperLink does not have."""
        from flwr.app.message import remove_content_from_message
        from flwr.common.serde import message_to_proto
        from flwr.proto.fleet_pb2 import PushMessagesRequest
        from flwr.supercore.inflatable import inflatable_object as inflatable
        from flwr.supercore.inflatable.inflatable_protobuf_utils import make_push_object_fn_protobuf
        from flwr.supercore.inflatable.inflatable_utils import push_objects

        reply.metadata.__dict__["_message_id"] = reply.object_id
        run = reply.metadata.run_id
        with inflatable.no_object_id_recompute():
            announced = message_to_proto(remove_content_from_message(reply) if reply.has_content() else reply)
            tree = inflatable.get_object_tree(reply)
            request = PushMessagesRequest(node=self._named, messages_list=[announced], message_object_trees=[tree])
            wanted = self._client.PushMessages(request)
            push = make_push_object_fn_protobuf(self._client.PushObject, self._named, run, wanted.session_id)
            parts = inflatable.get_all_nested_objects(reply)
            push_objects(parts, push, object_ids_to_push=set(wanted.objects_to_push))

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Tell in one line what goes wrong between the node and the SuperLink.

        Raises:
            ClusterError: the SuperLink is lost, or does not know the node. Everything else costs one message.
        """
        import httpx
        from flwr.supercore.inflatable import inflatable_utils as inflatable

        try:
            yield
            self._heard = time.monotonic()
        except httpx.HTTPStatusError as error:
            code, words = error.response.status_code, " ".join(error.response.text.split())[:200]
            if code >= httpx.codes.INTERNAL_SERVER_ERROR:
                raise ClusterError(f"flower: the server at {self._address} cannot answer now: {words}") from None
            if code not in (httpx.codes.FORBIDDEN, httpx.codes.REQUEST_ENTITY_TOO_LARGE):
                known = f"the server at {self._address} does not accept this node: {words}"
                raise ClusterError(f"flower: {known}; its public key has to be registered there") from None
            _LOG.warning("a message is lost: %s", words)  # its run is over, or it is too large
        except httpx.HTTPError as error:
            raise ClusterError(f"flower: the server at {self._address} does not answer: {error}") from None
        except (inflatable.ObjectPullError, inflatable.ObjectPushError) as error:
            _LOG.warning("a message is lost: %s", error)


def _private_key(path: Path) -> Any:
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    try:
        found = load_ssh_private_key(path.read_bytes(), None)
    except ValueError:
        found = None
    if not isinstance(found, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"keys: {str(path)!r} holds no private key of a node; fedmime deploy keys makes one")
    return found


def _impatient(pull: Callable[[str], bytes]) -> Callable[[str], bytes]:
    """The function that fetches a record, which gives up when none of a message has come for a while.

    A ServerApp that dies between announcing a message and sending its records would otherwise be waited for until
    Flower notices, which takes minutes.
    """
    from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectUnavailableError

    last = time.monotonic()

    def pulled(name: str) -> bytes:
        nonlocal last
        try:
            found = pull(name)
        except ObjectUnavailableError:
            if time.monotonic() - last > _STALLED:
                raise ObjectPullError(name, f"none of the message has come for {_STALLED:.0f} s") from None
            raise
        last = time.monotonic()
        return found

    return pulled


def _reply(node: Node, message: Any, content: Any) -> Any:
    """The reply to a message. Whatever it holds, there is one.

    Of an error in the client the server learns the type alone: its words may quote the client's data.
    """
    from flwr.app import Message

    try:
        return Message(records.wrapped(node.answer(records.unwrapped(content, MOST))), reply_to=message)
    except records.RecordError as error:  # it speaks of the server's own message
        return _refusal(message, _RAISED, str(error)[:200])
    except Exception as error:
        _LOG.exception("a message got no answer")
        return _refusal(message, _RAISED, type(error).__name__)


def _refusal(message: Any, code: int, words: str) -> Any:
    from flwr.app import Error, Message

    return Message(Error(code, words), reply_to=message)


def main() -> None:
    """Build the node of an order, and let it serve; the argument is the file that says which and whom."""
    told = read_object(Path(sys.argv[1]))
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    node = Order.of(told).build()
    FleetNode(node, told["address"], Path(told["authority"]), Path(told["key"]), told["patience"]).serve()


if __name__ == "__main__":
    main()
