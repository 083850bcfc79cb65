"""A program: a secure deployed run once more with its nodes in this process, one of which may be away for a message."""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

from fedmime.data import partition
from fedmime.deploy.node import JaxNode
from fedmime.deploy.protocol import Node, unpack
from fedmime.deploy.secure.options import SecureSum
from fedmime.deploy.server import Waiting, run_setting
from fedmime.deploy.transport import LoopTransport
from fedmime.experiments import tasks
from fedmime.experiments.setting import Setting, merged


class Away:
    """A node that is gone when it gets its n-th masked request."""

    def __init__(self, node: Node, at: int) -> None:
        self._node, self._left = node, at

    def answer(self, request: bytes) -> bytes:
        if unpack(request, 1 << 30).kind == "mask":
            self._left -= 1
            if self._left == -1:
                raise ConnectionError("gone")
        return self._node.answer(request)


def main(deployed: Path, out: Path, nodes: int, rounds: int, away: int, at: int) -> None:
    config = yaml.safe_load((deployed / "config.yaml").read_text())
    fields = {name: value for name, value in config.items() if name in Setting.__dataclass_fields__}
    setting, task = merged(Setting(), fields | {"rounds": rounds}, "config"), tasks.get(config["task"])
    population = partition.regroup(task.clients(), nodes)
    made: dict[int, Node] = {
        number: JaxNode(task.problem(), population.client(name), name) for number, name in enumerate(population.ids)
    }
    if away >= 0:
        made[away] = Away(made[away], at)
    options = {"waiting": Waiting(nodes, 60.0, 60.0), "secure": SecureSum(), "test": population.test}
    run_setting(LoopTransport(made), setting, run_dir=out, **options)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))
