"""The entrants' view of the work: each client's columns, its mini-batches as positions, the first weights."""

import numpy as np


class WorkFile:
    """Read once at the start; needs NumPy alone, so that every entrant's environment can."""

    def __init__(self, path: str) -> None:
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
        self.model = str(arrays["model"])
        self.batch = int(arrays["batch"])
        self.sizes = [int(n) for n in arrays["sizes"]]
        self.starts = np.cumsum([0, *self.sizes]).tolist()
        self.clients = [
            {name: arrays[name][a:b] for name in ("x", "y")} for a, b in zip(self.starts, self.starts[1:], strict=False)
        ]
        self.initial = {name[5:]: value for name, value in arrays.items() if name.startswith("init/")}
        self._order = arrays["order"]

    def batches(self, client: int, epochs: int) -> list[np.ndarray]:
        """Positions of a client's mini-batches, in order; the last of an epoch may be shorter."""
        a, b = self.starts[client], self.starts[client + 1]
        return [self._order[e, a:b][k : k + self.batch] for e in range(epochs) for k in range(0, b - a, self.batch)]
