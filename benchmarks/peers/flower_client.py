"""The client half of the Flower entrant, in a module of its own so that Ray's actors can import it."""

import functools

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch_models import module, tensors
from work_file import WorkFile

app = ClientApp()


@functools.cache
def _work(path: str) -> WorkFile:
    """Read once in every actor."""
    return WorkFile(path)


@functools.cache
def _client(path: str, i: int, epochs: int) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    rows = [torch.from_numpy(np.array(b)).long() for b in _work(path).batches(i, epochs)]
    return *tensors(_work(path).clients[i]), rows


@functools.cache
def _module(name: str) -> torch.nn.Module:
    return module(name)


@app.train()
def train(message: Message, context: Context) -> Message:
    """One client's epochs from the server's weights."""
    config = message.content["config"]
    path = config["path"]
    here = _module(_work(path).model)
    here.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y, batches = _client(path, int(context.node_config["partition-id"]), config["epochs"])
    optimizer = torch.optim.SGD((p for p in here.parameters() if p.requires_grad), lr=config["eta"])
    for rows in batches:
        optimizer.zero_grad()
        here.loss(x[rows], y[rows]).backward()
        optimizer.step()
    content = {"arrays": ArrayRecord(here.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
    return Message(content=RecordDict(content), reply_to=message)
