"""The server's transport over Flower's grid, which is the ServerApp's door to the SuperLink.

Flower hands a message out once. Reading it waits for everything that its sender has announced, for minutes if the
sender is slow or has died, and raises an error if what arrived is damaged. Therefore replies are read one at a time,
each in a thread of its own: no node can delay or lose another one's reply.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedmime.deploy.flower import records
from fedmime.deploy.flower.client_app import ACTION
from fedmime.deploy.transport import Failure
from fedmime.errors import ClusterError

if TYPE_CHECKING:
    from flwr.serverapp import Grid

_SHORTEST, _LONGEST, _GROWTH = 0.05, 2.0, 1.4  # seconds between two looks for one node's reply
_LOOKS = 50.0  # looks a second for all nodes together, each of which costs the SuperLink some milliseconds
_GRACE = 5.0  # seconds that a message outlives its deadline, so that nobody looks for one that is gone
_REASON = 200  # characters


class GridTransport:
    """Nodes that Flower has authenticated by their keys.

    Args:
        grid: what Flower gives a ServerApp.
        most: bytes of the largest reply that is accepted.
    """

    def __init__(self, grid: Grid, most: int) -> None:
        self._grid, self._most = grid, most

    def nodes(self) -> Sequence[int]:
        """See `Transport.nodes`.

        Raises:
            ClusterError: the run was stopped, or the SuperLink is lost.
        """
        with _lost():
            return sorted(self._grid.get_node_ids())

    def exchange(self, requests: Mapping[int, bytes], deadline: float) -> Iterator[tuple[int, bytes | Failure]]:
        """See `Transport.exchange`.

        Raises:
            ClusterError: the run was stopped, or the SuperLink is lost.
        """
        end = time.monotonic() + deadline
        sent = self._push(requests, deadline + _GRACE)
        arrived: queue.SimpleQueue[tuple[int, bytes | Failure | ClusterError]] = queue.SimpleQueue()
        over = threading.Event()
        pause = max(_SHORTEST, len(sent) / _LOOKS)
        for node, message_id in sent.items():
            if message_id:
                watch = (node, message_id, arrived, over, pause)
                threading.Thread(target=self._watch, args=watch, daemon=True).start()
            else:
                arrived.put((node, Failure("the SuperLink does not know the node any more")))
        try:
            for _ in sent:
                node, reply = arrived.get(timeout=max(end - time.monotonic(), 0))
                if isinstance(reply, ClusterError):
                    raise reply
                yield node, reply
        except queue.Empty:
            return
        finally:
            over.set()

    def _push(self, requests: Mapping[int, bytes], ttl: float) -> dict[int, str]:
        """Send every node its request; the ids that Flower gave the messages, empty for one that it did not take."""
        from flwr.app import Message

        kind = f"query.{ACTION}"
        messages = [Message(records.wrapped(data), node, kind, ttl=ttl) for node, data in requests.items()]
        with _lost():
            ids = list(self._grid.push_messages(messages)) if messages else []
        return dict(zip(requests, (each or "" for each in ids), strict=True))

    def _watch(
        self, node: int, message_id: str, arrived: queue.SimpleQueue[Any], over: threading.Event, pause: float
    ) -> None:
        """Look for the reply to one message until it is there, or nobody wants it any more.

        The longer it has not come, the longer is the pause between two looks: the delay is a part of the wait.
        """
        while not over.is_set():
            try:
                with _lost():
                    found = [m for m in self._grid.pull_messages([message_id]) if _answers(m, message_id)]
                if found:
                    arrived.put((node, self._opened(found[0])))
                    return
            except ClusterError as error:
                arrived.put((node, error))
                return
            except Exception as error:  # what a node sent cannot be read: its reply is lost, and only its
                arrived.put((node, Failure(_one_line(f"{type(error).__name__}: {error}"))))
                return
            over.wait(pause)
            pause = max(min(pause * _GROWTH, _LONGEST), pause)

    def _opened(self, message: Any) -> bytes | Failure:
        """What a reply carries."""
        if message.has_error():
            return Failure(_one_line(f"Flower's error {message.error.code}: {message.error.reason}"))
        try:
            return records.unwrapped(message.content, self._most)
        except records.RecordError as error:
            return Failure(str(error))


def _answers(message: Any, message_id: str) -> bool:
    return message.metadata.reply_to_message_id == message_id


def _one_line(text: str) -> str:
    return " ".join(text.split())[:_REASON]


@contextlib.contextmanager
def _lost() -> Iterator[None]:
    """Tell the loss of the SuperLink or the end of the run apart from what a node has done."""
    import httpx
    from flwr.supercore.run import RunNotRunningException

    try:
        yield
    except RunNotRunningException:
        raise ClusterError("flower: the run was stopped") from None
    except httpx.TransportError as error:
        raise ClusterError(f"flower: the SuperLink is lost: {_one_line(str(error))}") from None


def refuse_arrays() -> None:
    """Let nothing that a node sends be inflated to more than was sent.

    Flower's description of an array lists chunks by number, and may name one chunk any number of times. Flower inflates
    what arrives before a ServerApp sees it. Our messages hold no arrays, so this process forgets how to inflate them:
    reading such a reply then fails, which costs its sender's reply and nothing else.
    """
    from flwr.supercore.inflatable.inflatable_utils import inflatable_class_registry

    inflatable_class_registry.pop("Array", None)
