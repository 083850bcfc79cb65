"""Hand-written PyTorch: FedAvg, MimeLite and Mime as a researcher would write them, one thread."""

from collections.abc import Iterator

import numpy as np
import torch
from protocol import Case, serve
from torch_models import dump, load, module, tensors
from work_file import WorkFile

CHUNK = 256  # examples at a time for the full gradient

Tensors = tuple[torch.Tensor, ...]


class Simulation:
    """One module trains, another stays at the server model."""

    def __init__(self, work: WorkFile, case: Case) -> None:
        self._work, self._case = work, case
        self._chunk = work.batch if work.model in ("cnn", "char_lstm") else CHUNK
        self._here, self._anchor = module(work.model), module(work.model)
        self._y = [p for p in self._here.parameters() if p.requires_grad]
        self._x = [p for p in self._anchor.parameters() if p.requires_grad]
        self._data = [tensors(client) for client in work.clients]
        self._orders = [
            [torch.from_numpy(np.array(b)).long() for b in work.batches(i, case["epochs"])]
            for i in range(len(work.clients))
        ]
        self.reset()

    def wait(self) -> None:
        """A round has ended when it returns."""

    def reset(self) -> None:
        load(self._work.model, self._anchor, self._work.initial)
        self._m = [torch.zeros_like(p) for p in self._x]

    def weights(self) -> dict[str, np.ndarray]:
        return dump(self._work.model, self._anchor)

    def round(self) -> None:
        fedavg = self._case["algorithm"] == "fedavg"
        c = None if fedavg else self._full_gradient()
        train = self._train_fedavg if fedavg else self._train_mime
        total = [torch.zeros_like(p) for p in self._x]
        for i, n in enumerate(self._work.sizes):
            with torch.no_grad():
                torch._foreach_copy_(self._y, self._x)
            train(i, c)
            with torch.no_grad():
                torch._foreach_add_(total, self._y, alpha=n / sum(self._work.sizes))
        with torch.no_grad():
            torch._foreach_copy_(self._x, total)
            if c is not None and self._case["base"] == "momentum":
                torch._foreach_lerp_(self._m, c, 1 - self._case["beta"])

    def _batches(self, i: int) -> Iterator[Tensors]:
        x, y = self._data[i]
        return ((x[rows], y[rows]) for rows in self._orders[i])

    def _train_fedavg(self, i: int, c: Tensors | None) -> None:
        optimizer = torch.optim.SGD(self._y, lr=self._case["eta"])
        for x, y in self._batches(i):
            optimizer.zero_grad()
            self._here.loss(x, y).backward()
            optimizer.step()

    def _train_mime(self, i: int, c: Tensors | None) -> None:
        eta, beta = self._case["eta"], self._case["beta"] if self._case["base"] == "momentum" else 0.0
        corrected = self._case["algorithm"] == "mime"
        for x, y in self._batches(i):
            g = torch.autograd.grad(self._here.loss(x, y), self._y)
            if corrected:
                g = torch._foreach_sub(g, torch.autograd.grad(self._anchor.loss(x, y), self._x))
                torch._foreach_add_(g, c)
            with torch.no_grad():
                torch._foreach_add_(self._y, g, alpha=-eta * (1 - beta))
                torch._foreach_add_(self._y, self._m, alpha=-eta * beta)

    def _full_gradient(self) -> Tensors:
        """At the server model, over the union of the clients' examples."""
        x, y = (torch.cat(columns) for columns in zip(*self._data, strict=True))
        total = [torch.zeros_like(p) for p in self._x]
        for a in range(0, len(y), self._chunk):
            part = x[a : a + self._chunk], y[a : a + self._chunk]
            g = torch.autograd.grad(self._anchor.loss(*part), self._x)
            torch._foreach_add_(total, g, alpha=len(part[1]) / len(y))
        return tuple(total)


if __name__ == "__main__":
    serve(Simulation)
