"""Generated handwriting of 396 writers instead of 3,400, so that each of them takes part nine times as often.

The subset of EMNIST behind docs/results.md has 396 writers, too. SCAFFOLD's clients keep a control variate between
rounds; this task and handwriting-mlp together show what it matters how often they renew it.

    fedmime compare --task examples/fewer_writers.py:task --methods fedavg@0.316 scaffold@0.316 --epochs 10
"""

import fedmime as fm

task = fm.Task(
    "fewer-writers",
    lambda: fm.models.mlp(input_shape=(28, 28, 1), classes=62),
    lambda: fm.data.handwriting(clients=396),
    about="perceptron on generated handwriting of 396 writers",
    cohort=20,
    eta=0.1,
)
