"""Nodes that learn like others until they are asked for the n-th time, and then misbehave."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import lying

from fedmime.deploy.flower import builders
from fedmime.deploy.protocol import Node, unpack


class Faulty:
    """Passes requests on. At the n-th one to learn, it sleeps, crashes or sends too much; once, or ever after.

    A liar tells the lies of its list, one each time it is asked to learn, and the last one ever after (`lying.py`).

    Every request adds a line to the trace: its round, its kind, with masks its stage, and the kind of the reply.
    """

    def __init__(self, node: Node, fault: str | None, at: int, once: str | None, trace: str) -> None:
        self._node, self._fault, self._left, self._once, self._trace = node, fault, at, once, Path(trace)
        self._lies: list[str] = []
        if fault is not None and fault.startswith("lie "):
            self._lies = json.loads(fault.removeprefix("lie "))
            self._liar = lying.Liar(Path(trace).with_name("canary"))

    def answer(self, request: bytes) -> bytes:
        asked = unpack(request, 1 << 30)
        if self._fault is not None and asked.kind in ("ask", "mask"):
            self._left -= 1
            if self._left < 0 and not (self._once and Path(self._once).exists()):
                if self._once:  # complete at once for whoever waits for it
                    told = Path(f"{self._once}.begun")
                    told.write_text(json.dumps({name: asked.fields.get(name) for name in ("round", "train")}))
                    told.rename(self._once)
                name, _, number = self._fault.partition(" ")
                if name == "exit":
                    os._exit(3)
                if name == "sleep":
                    time.sleep(float(number))
                if name == "large":
                    return b"x" * int(number)
        reply = self._node.answer(request)
        if self._lies and asked.kind == "ask":
            return self._liar.told(self._lies.pop(0) if len(self._lies) > 1 else self._lies[0], reply)
        words = (asked.fields.get("round"), asked.kind, asked.fields.get("stage"), unpack(reply, 1 << 30).kind)
        with self._trace.open("a") as file:
            file.write(" ".join(map(str, words)) + "\n")
        return reply


def of_task(fault: str | None, at: int, once: str | None, trace: str, **arguments: Any) -> Faulty:
    return Faulty(builders.of_task(**arguments), fault, at, once, trace)
