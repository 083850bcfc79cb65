"""The ClientApp: what Flower starts for every message to a node, and all of it that does not need JAX.

It hands the message to the node's worker and the worker's reply to Flower. It knows neither.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fedmime.deploy.flower import hire, records
from fedmime.deploy.flower.channel import MOST
from fedmime.deploy.flower.worker import Order

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp

ACTION = "fedmime"
"""The action of our messages, whose type is `query.fedmime`."""


class Place(NamedTuple):
    """Which worker answers for a node, and where it lives."""

    order: Order
    directory: Path


def relay(place: Callable[[Context], Place]) -> ClientApp:
    """A ClientApp that passes messages on to a node's worker, which is started when there is none.

    Args:
        place: which worker that is, from what Flower says of the node and the run.
    """
    from flwr.app import Message
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.query(ACTION)
    def answer(message: Message, context: Context) -> Message:
        order, directory = place(context)
        request = records.unwrapped(message.content, MOST)
        # The process that has started this one, Flower's SuperExec, lives as long as the node.
        reply = hire.ask(order, directory, request, deadline=message.metadata.ttl, owner=os.getppid())
        return Message(records.wrapped(reply), reply_to=message)

    return app


def runtime_directory(node: int) -> Path:
    """Where the worker of a node that Flower knows by a number has its socket."""
    base = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
    return base / f"fedmime-{os.geteuid()}-{node:x}"
