"""A client: Flower starts this for every message, and a worker that keeps its data and programs answers."""

import fedmime as fm
from digits import task

app = fm.deploy.client_app(data=task.data, problem=task.problem, algorithm=task.algorithm)
