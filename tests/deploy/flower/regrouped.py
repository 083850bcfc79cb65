"""A program: the simulation of what a deployed run was asked for, on the clients that its nodes were."""

import dataclasses
import sys
from pathlib import Path

import yaml

import fedmime as fm
from fedmime.data import partition
from fedmime.experiments import train
from fedmime.experiments.setting import Setting, merged


def main(deployed: Path, out: Path, nodes: int, rounds: int, honest: int) -> None:
    config = yaml.safe_load((deployed / "config.yaml").read_text())
    fields = {name: value for name, value in config.items() if name in Setting.__dataclass_fields__}
    prepared = train.prepare(merged(Setting(), fields | {"rounds": rounds}, "config"))
    population = partition.regroup(prepared.population, nodes)
    if honest < nodes:  # the first ones; the others were never heard
        columns = {name: population.client(name) for name in population.ids[:honest]}
        population = fm.data.from_arrays(columns, test=population.test)
        setting = dataclasses.replace(prepared.setting, cohort=honest)
        prepared = dataclasses.replace(prepared, setting=setting)
    train.run(dataclasses.replace(prepared, population=population), out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))
