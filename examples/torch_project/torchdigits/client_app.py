"""A client: Flower starts this for every message, and a worker with the PyTorch model answers."""

import fedmime as fm

app = fm.deploy.torch_client_app("torchdigits.task:client")
