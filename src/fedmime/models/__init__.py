"""Learning problems: models and their losses as pure functions of plain pytrees.

The built-in models are those of the federated learning literature. `from_functions`, `from_flax` and `from_equinox`
make a problem of your own model.
"""

from fedmime import devices
from fedmime.models.convolutional import cnn
from fedmime.models.equinox_modules import from_equinox
from fedmime.models.flax_modules import from_flax
from fedmime.models.perceptron import logistic, mlp
from fedmime.models.problem import Factors, Problem, from_functions
from fedmime.models.recurrent import char_lstm, word_lstm
from fedmime.models.ridge import ridge

devices.use_all_cores()  # before anything starts JAX

__all__ = [
    "Factors",
    "Problem",
    "char_lstm",
    "cnn",
    "from_equinox",
    "from_flax",
    "from_functions",
    "logistic",
    "mlp",
    "ridge",
    "word_lstm",
]
