"""The generated handwriting of 396 writers instead of 3,400, so that each is met nine times as often.

    fedmime compare --task examples/fewer_writers.py:task --methods fedavg:momentum scaffold --epochs 10

The published subset of EMNIST has as many writers. The comparison tells whether SCAFFOLD, whose clients keep what they
last computed, is slower where clients are met rarely (docs/results_details.md).
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
