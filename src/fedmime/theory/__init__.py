"""The paper's theory made measurable: the constants of a task, the rates they give, problems where all is known."""

from fedmime.theory.constants import Constants, Cost, Intervals, constants
from fedmime.theory.quadratics import Quadratics, quadratics
from fedmime.theory.rates import Row, favoured, mvr_parameters, rounds_table, suggested_steps

__all__ = [
    "Constants",
    "Cost",
    "Intervals",
    "Quadratics",
    "Row",
    "constants",
    "favoured",
    "mvr_parameters",
    "quadratics",
    "rounds_table",
    "suggested_steps",
]
