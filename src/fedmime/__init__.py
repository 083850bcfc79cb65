"""Federated learning that mimics centralized training: Mime, its peers, and everything around a round."""

from fedmime import algorithms, data, models, optimizers, theory
from fedmime.aggregation import communication
from fedmime.algorithms import State, params
from fedmime.engine.cohort import Cohort
from fedmime.engine.devices import use_all_cores
from fedmime.engine.memory import DiskMemory, RamMemory
from fedmime.engine.participation import Participation
from fedmime.engine.round import Info, run_round
from fedmime.engine.simulate import Run, simulate
from fedmime.errors import ConfigError, DataError, Diverged, FedmimeError
from fedmime.vector import Vector

use_all_cores()

__all__ = [
    "Cohort",
    "ConfigError",
    "DataError",
    "DiskMemory",
    "Diverged",
    "FedmimeError",
    "Info",
    "Participation",
    "RamMemory",
    "Run",
    "State",
    "Vector",
    "algorithms",
    "communication",
    "data",
    "models",
    "optimizers",
    "params",
    "run_round",
    "simulate",
    "theory",
]
