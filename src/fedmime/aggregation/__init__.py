"""What happens to messages on their way: compression, clipping and noise, robust means, and what they cost.

`fm.simulate(…, aggregation=…)` takes what one of these functions returns, or a `chain` of them.
"""

from fedmime.aggregation.aggregator import Aggregator
from fedmime.aggregation.attacks import attack, attackers, flip_labels
from fedmime.aggregation.chains import Aggregation, chain, error_feedback
from fedmime.aggregation.clipping import clip
from fedmime.aggregation.combiner import Combiner, mean
from fedmime.aggregation.encoder import Encoder
from fedmime.aggregation.low_rank import low_rank
from fedmime.aggregation.privacy import gaussian
from fedmime.aggregation.quantization import quantize
from fedmime.aggregation.robust import geometric_median, krum, median, trimmed_mean
from fedmime.aggregation.sparsification import random_k, top_k

__all__ = [
    "Aggregation",
    "Aggregator",
    "Combiner",
    "Encoder",
    "attack",
    "attackers",
    "chain",
    "clip",
    "error_feedback",
    "flip_labels",
    "gaussian",
    "geometric_median",
    "krum",
    "low_rank",
    "mean",
    "median",
    "quantize",
    "random_k",
    "top_k",
    "trimmed_mean",
]
