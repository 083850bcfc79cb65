"""Nodes that learn like others until they are asked for the n-th time, and then misbehave."""

from __future__ import annotations

import os
import time
from pathlib import Path

from fedmime.deploy.flower import builders
from fedmime.deploy.protocol import Node, unpack


class Faulty:
    """Passes requests on. At the n-th one to learn, it sleeps, crashes or sends too much; once, or ever after."""

    def __init__(self, node: Node, fault: str, at: int, once: str | None) -> None:
        self._node, self._fault, self._left, self._once = node, fault, at, once

    def answer(self, request: bytes) -> bytes:
        if unpack(request, 1 << 30).kind == "ask":
            self._left -= 1
            if self._left < 0 and not (self._once and Path(self._once).exists()):
                if self._once:
                    Path(self._once).touch()
                name, _, number = self._fault.partition(" ")
                if name == "exit":
                    os._exit(3)
                if name == "sleep":
                    time.sleep(float(number))
                if name == "large":
                    return b"x" * int(number)
        return self._node.answer(request)


def of_task(fault: str, at: int, once: str | None, **arguments: str) -> Faulty:
    return Faulty(builders.of_task(**arguments), fault, at, once)
