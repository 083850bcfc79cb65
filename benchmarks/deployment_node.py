"""A node that writes down the CPU seconds of each message: to decode it, and to compute and encode the reply."""

from __future__ import annotations

import json
import time
from pathlib import Path

from fedmime.deploy.flower import builders
from fedmime.deploy.protocol import Node, unpack

LARGEST = 1 << 30


class Timed:
    """Passes requests on to a node.

    Args:
        node: the node.
        log: the file to which a line is added for each request.
    """

    def __init__(self, node: Node, log: Path) -> None:
        self._node, self._log = node, log

    def answer(self, request: bytes) -> bytes:
        begun = time.process_time()
        unpack(request, LARGEST)
        decoded = time.process_time()
        reply = self._node.answer(request)
        answered = time.process_time()
        spent = {"decode": decoded - begun, "compute": answered - decoded - (decoded - begun)}  # it decodes, too
        with self._log.open("a") as file:
            file.write(json.dumps({"at": time.monotonic()} | spent) + "\n")
        return reply


def of_task(log: str, **arguments: str) -> Timed:
    """See `builders.of_task`."""
    return Timed(builders.of_task(**arguments), Path(log))
