"""A program: many nodes in one process, each with its own key, of which some drop out of every round.

Who drops out is away when it is asked, and answers too late. That takes turns: in round r, of n nodes the k-th one
drops out if (k + 3 r) mod n is less than the number of those that do.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from pathlib import Path
from typing import Any

from fedmime.compilation import prepare
from fedmime.data import from_store
from fedmime.deploy.flower.node import FleetNode
from fedmime.deploy.node import JaxNode
from fedmime.deploy.protocol import Node, unpack
from fedmime.experiments import tasks


def away(number: int, round_number: int, nodes: int, drops: int) -> bool:
    return (number + 3 * round_number) % nodes < drops


class Dropping:
    """Passes requests on, and answers late when it is its turn to be away."""

    def __init__(self, node: Node, number: int, told: dict[str, Any]) -> None:
        self._node, self._number, self._told = node, number, told

    def answer(self, request: bytes) -> bytes:
        asked = unpack(request, 1 << 30)
        turn = asked.fields.get("round", 0)
        if asked.kind == "ask" and away(self._number, turn, self._told["nodes"], self._told["drops"]):
            time.sleep(self._told["seconds"])
        return self._node.answer(request)


def main() -> None:
    told = json.loads(Path(sys.argv[1]).read_text())
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    prepare()
    population, problem = from_store(told["store"]), tasks.get(told["task"]).problem()
    threads = []
    for number, name in enumerate(population.ids):
        node = Dropping(JaxNode(problem, population.client(name), name), number, told)
        fleet_node = FleetNode(node, told["address"], Path(told["authority"]), Path(told["keys"]) / name, 120.0)
        threads.append(threading.Thread(target=fleet_node.serve, daemon=True))
        threads[-1].start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
