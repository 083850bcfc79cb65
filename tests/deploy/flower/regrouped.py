"""A program: the simulation of what a deployed run was asked for, on the clients that its nodes were."""

import dataclasses
import sys
from pathlib import Path

import yaml

from fedmime.data import partition
from fedmime.experiments import train
from fedmime.experiments.setting import Setting, merged


def main(deployed: Path, out: Path, nodes: int, rounds: int) -> None:
    config = yaml.safe_load((deployed / "config.yaml").read_text())
    fields = {name: value for name, value in config.items() if name in Setting.__dataclass_fields__}
    prepared = train.prepare(merged(Setting(), fields | {"rounds": rounds}, "config"))
    population = partition.regroup(prepared.population, nodes)
    train.run(dataclasses.replace(prepared, population=population), out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
