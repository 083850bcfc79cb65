"""The server: the loop, the checkpoints and the gate of `fm.simulate`, with Flower's nodes for clients."""

import fedmime as fm
from digits import task

app = fm.deploy.server_app(algorithm=task.algorithm, problem=task.problem, test=task.test, evaluate_every=1)
