"""The server: the same layers as the clients' `Net`, from `fm.models`, and the algorithm that trains them."""

import fedmime as fm


def problem():
    return fm.models.mlp(input_shape=(64,), classes=10, hidden=(32,))


def algorithm():
    return fm.algorithms.mime(fm.optimizers.adam(eps=1e-3), eta=1e-3)


app = fm.deploy.server_app(algorithm=algorithm, problem=problem)
