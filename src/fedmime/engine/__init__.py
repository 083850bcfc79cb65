"""The engine: cohorts, rounds and the loop around them."""

from fedmime.aggregation.gate import Gate
from fedmime.engine.cohort import Cohort
from fedmime.engine.evaluate import evaluate
from fedmime.engine.evaluation import Evaluation, Spread
from fedmime.engine.memory import RamMemory
from fedmime.engine.participation import Participation
from fedmime.engine.round import Info
from fedmime.engine.simulate import simulate
from fedmime.engine.single import run_round
from fedmime.runs.directory import Saving
from fedmime.runs.disk_memory import DiskMemory
from fedmime.runs.run import Run

__all__ = [
    "Cohort",
    "DiskMemory",
    "Evaluation",
    "Gate",
    "Info",
    "Participation",
    "RamMemory",
    "Run",
    "Saving",
    "Spread",
    "evaluate",
    "run_round",
    "simulate",
]
