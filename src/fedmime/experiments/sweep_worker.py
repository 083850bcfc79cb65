"""A worker process of a sweep, started as a program by `sweep_processes`: it trains shares until its input ends.

It reads and writes lines of JSON. The first one it reads is the sweep's job. Then come orders, `{"order": number,
"share": {place: name}, "until": rounds}`, and `{"pause": number}`, upon which the order of that number is broken off
and answered. It writes `{"rounds": count}` for progress, and for every order `{"answer": …}` or `{"error": [kind,
message, traceback]}`. When the input ends, because the sweep has ended or was killed, it saves what it is at and ends.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import sys
import threading
import time
import traceback
from typing import Any, TextIO

_EVERY = 0.1  # seconds between words about progress


class _Orders:
    """What the input says, read by a thread, so that a pause is seen while a share is trained."""

    def __init__(self, stream: TextIO) -> None:
        self.job = stream.readline()
        self.waiting: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.paused = 0  # the number of the last order that is to be broken off
        threading.Thread(target=self._read, args=(stream,), daemon=True).start()

    def _read(self, stream: TextIO) -> None:
        for line in stream:
            message = json.loads(line)
            if "pause" in message:
                self.paused = message["pause"]
            else:
                self.waiting.put(message)
        self.paused = sys.maxsize
        self.waiting.put(None)


class _Answers:
    """What the output says."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._rounds, self._told = stream, 0, 0.0

    def send(self, **message: Any) -> None:
        """Write a line, after what there is to tell about progress. Where nobody reads any more, nobody misses it."""
        progress = [{"rounds": self._rounds}] if self._rounds else []
        try:
            self._stream.writelines(json.dumps(each) + "\n" for each in (*progress, message) if each)
            self._stream.flush()
        except BrokenPipeError:
            return
        self._rounds, self._told = 0, time.monotonic()

    def on_round(self) -> None:
        """Count a round, and tell it now and then."""
        self._rounds += 1
        if time.monotonic() - self._told > _EVERY:
            self.send()


def main() -> None:
    """Obey orders. What libraries print goes to standard error, because standard output carries answers."""
    answers = _Answers(os.fdopen(os.dup(1), "w", encoding="utf-8"))
    os.dup2(2, 1)
    logging.getLogger("absl").setLevel(logging.ERROR)
    orders = _Orders(sys.stdin)
    while (order := orders.waiting.get()) is not None:
        try:
            found = _obeyed(order, orders, answers)
        except Exception as error:
            answers.send(error=[type(error).__name__, str(error), traceback.format_exc()])
        else:
            answers.send(answer=found)
    sys.stderr.flush()
    os._exit(0)  # all is saved: JAX need not be taken down


def _obeyed(order: dict[str, Any], orders: _Orders, answers: _Answers) -> Any:
    from fedmime.experiments.sweep_share import train_share

    share = {int(place): name for place, name in order["share"].items()}
    return train_share(orders.job, share, order["until"], answers.on_round, lambda: orders.paused >= order["order"])


if __name__ == "__main__":
    main()
