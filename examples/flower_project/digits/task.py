"""What server and clients share: data, model and algorithm, in functions, so that importing them costs nothing."""

import fedmime as fm


def data(config):
    """The examples of one node, from its configuration, as in every Flower project."""
    population = fm.data.digits(clients=int(config["num-partitions"]), alpha=0.5)
    return population.client_at(int(config["partition-id"]))


def problem():
    return fm.models.logistic(input_shape=(8, 8, 1), classes=10)


def algorithm():
    return fm.algorithms.mime(fm.optimizers.momentum(), eta=0.1)


def test():
    return fm.data.digits(clients=1).test
