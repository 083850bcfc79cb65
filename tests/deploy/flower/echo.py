"""A node that gives back what it is sent, and what a ServerApp asks it, to try transports without learning."""

from __future__ import annotations

import os
import subprocess
import time
from typing import Any

from fedmime.deploy.transport import Failure


class Echo:
    def __init__(self, name: str) -> None:
        self.name = name

    def answer(self, request: bytes) -> bytes:
        if request == b"exit":
            os._exit(3)
        if request == b"raise":
            raise ValueError("asked for")
        if request.startswith(b"sleep "):
            time.sleep(float(request.split()[1]))
        if request == b"who":
            return f"{self.name} {os.getpid()}".encode()
        return request


def node(name: str) -> Echo:
    return Echo(name)


def talkative(name: str) -> Echo:
    """A node whose code prints while it is built, as users' code may, by itself and in a process that it starts."""
    print("what users print", flush=True)
    subprocess.run(["echo", "what programs say"], check=True)
    return Echo(name)


def play(transport: Any, report: Any, nodes: int, messages: list[str], deadline: float) -> None:
    """Send every node the same messages, one after another, and tell the launcher what comes back."""
    end = time.monotonic() + 60
    while len(transport.nodes()) < nodes and time.monotonic() < end:
        time.sleep(0.1)
    for message in messages:
        data = os.urandom(int(message.split()[1])) if message.startswith("random ") else message.encode()
        begun = time.monotonic()
        for node, reply in transport.exchange(dict.fromkeys(transport.nodes(), data), deadline):
            failed = isinstance(reply, Failure)
            shown = reply.reason if failed else "same" if reply == data else reply.decode()
            report.tell({"node": node, "failed": failed, "reply": shown, "seconds": time.monotonic() - begun})
        report.tell({"end": message, "seconds": time.monotonic() - begun})
