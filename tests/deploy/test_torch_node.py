"""Clients in PyTorch against the reference back end, and what they refuse."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import fedmime as fm
from deploy.affine_setting import (
    Outcome,
    Round,
    asks,
    by_messages,
    by_reference,
    error,
    flat,
    greeting,
    shelve,
    started,
)
from fedmime.deploy import torch_layouts
from fedmime.deploy.node import JaxNode
from fedmime.deploy.protocol import unpack
from fedmime.deploy.server import Waiting, run
from fedmime.deploy.transport import LoopTransport
from fedmime.engine.sampling import Schedule

torch = pytest.importorskip("torch", reason="make torch installs PyTorch")
pytestmark = pytest.mark.slow
nn = torch.nn
torch.set_num_threads(1)  # the models are too small for more

a, o = fm.algorithms, fm.optimizers
SHAPE, CLASSES, ETA = (6, 8, 1), 5, 0.02
LOSS = nn.CrossEntropyLoss(reduction="none")
ALGORITHMS: dict[str, Any] = {
    "fedavg": a.fedavg(ETA),
    "fedprox": a.fedprox(ETA, 0.3),
    "scaffold": a.scaffold(ETA),
    "mime_lite": a.mime_lite(o.sgd(), ETA),
    **{
        f"mime-{base.__class__.__name__.lower()}": a.mime(base, ETA)
        for base in (
            o.sgd(),
            o.momentum(0.9),
            o.nesterov(0.9),
            o.adagrad(0.1, 1e-2),
            o.adam(0.9, 0.99, 1e-1),
            o.rmsprop(0.99, 1e-1),
            o.yogi(0.9, 0.99, 1e-1),
            o.sm3(1e-1),
            o.adafactor(0.8, 1e-30, 1e-1),
        )
    },
    "mime_lite-adam": a.mime_lite(o.adam(0.9, 0.99, 1e-1), ETA),
}


class Cnn(nn.Module):
    """The network of `fm.models.cnn` as one writes it in PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
        self.hidden, self.out = nn.Linear(64 * 1 * 2, 128), nn.Linear(128, CLASSES)
        self.drop = nn.Dropout(0.0)

    def forward(self, x: Any) -> Any:
        a = torch.relu(self.first(x.movedim(-1, 1)))
        a = nn.functional.max_pool2d(torch.relu(self.second(a)), 2)
        return self.out(self.drop(torch.relu(self.hidden(a.flatten(1)))))


def _perceptron() -> Any:
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, CLASSES))


CNN_NAMES = {
    "conv0.w": ("first.weight", torch_layouts.CONVOLUTION),
    "conv0.b": "first.bias",
    "conv1.w": ("second.weight", torch_layouts.CONVOLUTION),
    "conv1.b": "second.bias",
    "dense0.w": ("hidden.weight", torch_layouts.flattened(64)),
    "dense0.b": "hidden.bias",
    "dense1.w": "out.weight",
    "dense1.b": "out.bias",
}
MODELS: dict[str, tuple[Any, Callable[[], Any], Any]] = {
    "logistic": (
        fm.models.logistic(SHAPE, CLASSES),
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(48, CLASSES)),
        {"dense0.w": "1.weight", "dense0.b": "1.bias"},
    ),
    "mlp": (fm.models.mlp(SHAPE, CLASSES, (6, 5)), _perceptron, None),
    "cnn": (fm.models.cnn(SHAPE, CLASSES, 0.0), Cnn, CNN_NAMES),
}


def _columns(n: int, dtype: Any = np.float64, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {"x": rng.random((n, *SHAPE)).astype(dtype), "y": rng.integers(0, CLASSES, n)}


def _before(model: str, algorithm: str, dtype: Any) -> Round:
    problem = MODELS[model][0]
    params = jax.tree.map(lambda leaf: np.asarray(leaf, dtype), problem.init(jax.random.key(3)))
    n, epochs = (8, 1) if model == "cnn" else (11, 2)  # eager convolutions are compiled for every number of examples
    schedule = Schedule(1, 4, epochs, None, 5, "examples")
    return started(ALGORITHMS[algorithm], problem, params, _columns(n, dtype), schedule, 2, 1)


def _node(columns: Any, model: str, dtype: Any = np.float64, state: Path | None = None) -> Any:
    _, make, names = MODELS[model]
    module = make().to(torch.float64 if dtype == np.float64 else torch.float32)
    return fm.deploy.torch_client(module, LOSS, columns, client="c", names=names, state=state)


def _outcomes(model: str, algorithm: str, dtype: Any, directory: Path) -> tuple[Outcome, Outcome]:
    before = _before(model, algorithm, dtype)
    shelve(before, directory)
    return by_messages(before, _node(before.columns, model, dtype, directory)), by_reference(before)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("model", MODELS)
def test_double_precision(model: str, algorithm: str, tmp_path: Path, fact) -> None:
    found = error(*_outcomes(model, algorithm, np.float64, tmp_path))
    fact("a client in PyTorch against the reference back end, relative error in float64", found)
    assert found <= 1e-12


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("model", MODELS)
def test_single_precision(model: str, algorithm: str, tmp_path: Path, fact) -> None:
    found = error(*_outcomes(model, algorithm, np.float32, tmp_path), least=1.0)
    fact("a client in PyTorch against the reference back end, error in float32", found)
    assert found <= 1e-6


def test_the_models_layers_in_order_need_no_names() -> None:
    before, other = _before("mlp", "mime-adam", np.float64), _node(_columns(11), "mlp")
    leaves = {"w": "weight", "b": "bias"}
    names = {f"dense{i}.{leaf}": f"{2 * i + 1}.{leaves[leaf]}" for i in range(3) for leaf in leaves}
    named = fm.deploy.torch_client(_perceptron().double(), LOSS, _columns(11), client="c", names=names)
    assert error(by_messages(before, named), by_messages(before, other)) == 0.0


class Pairs(torch.utils.data.Dataset):
    """A data set of pairs."""

    def __init__(self, columns: Any) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns["y"])

    def __getitem__(self, place: int) -> Any:
        return self.columns["x"][place], self.columns["y"][place]


def _function(model: Any, batch: Any) -> Any:
    return nn.functional.cross_entropy(model(batch["x"]), batch["y"], reduction="none")


@pytest.mark.parametrize(
    ("loss", "data"),
    [
        (_function, lambda columns: columns),
        (LOSS, Pairs),
        (_function, Pairs),
        (LOSS, lambda columns: {name: torch.from_numpy(column) for name, column in columns.items()}),
    ],
    ids=["a function", "a data set", "a function and a data set", "tensors"],
)
def test_every_form_of_loss_and_data_gives_the_same(loss: Any, data: Any) -> None:
    before = _before("mlp", "mime-momentum", np.float64)
    node = fm.deploy.torch_client(_perceptron().double(), loss, data(before.columns), client="c")
    assert error(by_messages(before, node), by_messages(before, _node(before.columns, "mlp"))) == 0.0


def test_frozen_layers_stay_with_the_client() -> None:
    before = _before("logistic", "fedavg", np.float64)
    module = nn.Sequential(nn.Flatten(), nn.Linear(48, 48), nn.Linear(48, CLASSES)).double()
    with torch.no_grad():
        module[1].weight.copy_(torch.eye(48))
        module[1].bias.zero_()
    module[1].requires_grad_(False)
    node = fm.deploy.torch_client(module, LOSS, before.columns, client="c")
    assert error(by_messages(before, node), by_reference(before)) <= 1e-12


class Noisy(nn.Module):
    """Dropout that is no module."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(48, CLASSES)

    def forward(self, x: Any) -> Any:
        return nn.functional.dropout(self.out(x.flatten(1)), training=self.training)


def _linear() -> Any:
    return nn.Sequential(nn.Flatten(), nn.Linear(48, CLASSES))


BATCH_NORM = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(48), nn.Linear(48, CLASSES))
DROPOUT = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(48, CLASSES))
MIXED = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
DATA = _columns(9, np.float32)


@pytest.mark.parametrize(
    ("model", "loss", "data", "words"),
    [
        ("net", LOSS, DATA, "model must be a torch.nn.Module, got str"),
        (nn.Flatten(), LOSS, DATA, "model must have parameters that require gradients, got none"),
        (BATCH_NORM, LOSS, DATA, "model must have no buffers, got '1.running_mean'; use GroupNorm"),
        (MIXED, LOSS, DATA, "model must have parameters of one type, got torch.float32, torch.float64"),
        (DROPOUT, LOSS, DATA, "loss must not draw random numbers, got two results for one batch; set dropout to 0"),
        (Noisy(), LOSS, DATA, "loss must not draw random numbers"),
        (_linear(), nn.CrossEntropyLoss(), DATA, r"loss must have shape \[n\], got \[\]; use reduction='none'"),
        (_linear(), nn.MSELoss(reduction="none"), DATA | {"y": np.zeros((9, 5))}, r"shape \[n\], got \[n, 5\]"),
        (_linear(), "cross entropy", DATA, "loss must be a module or a function"),
        (_linear(), LOSS, {"x": DATA["x"]}, "data must have the fields 'x' and 'y' for such a loss, 'y' is missing"),
        (_linear(), LOSS, {"x": DATA["x"], "y": DATA["y"][:3]}, "the same number of examples in every field"),
        (_linear(), LOSS, {"x": DATA["x"][:0], "y": DATA["y"][:0]}, "the same number of examples in every field"),
        (_linear(), LOSS, DATA | {"x": DATA["x"] * np.nan}, "data must be finite, field 'x' has NaN"),
        (_linear(), LOSS, [1, 2], "data must be a dictionary or a Dataset with a length, got list"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_refusals(model: Any, loss: Any, data: Any, words: str) -> None:
    with pytest.raises(fm.FedmimeError, match=words):
        fm.deploy.torch_client(model, loss, data, client="c")


def test_another_model_is_refused_by_its_first_difference() -> None:
    node = fm.deploy.torch_client(nn.Sequential(nn.Flatten(), nn.Linear(48, 7)), LOSS, DATA, client="c")
    reply = unpack(node.answer(greeting(_before("logistic", "fedavg", np.float32))), 0)
    assert reply.kind == "refusal"
    assert "the server's model has dense0.b [5] where the client's has dense0.b [7]" in reply.fields["words"]


def test_another_precision_is_refused() -> None:
    reply = unpack(_node(DATA, "logistic", np.float32).answer(greeting(_before("logistic", "fedavg", np.float64))), 0)
    assert "the server's model is float64, this one float32; use model.double()" in reply.fields["words"]


CLIENTS = {f"client {i}": _columns(n, np.float32, i) for i, n in enumerate((7, 11, 4, 9, 12))}


def _single(problem: Any) -> Any:
    """The problem with single precision, where tests run in double."""
    return dataclasses.replace(
        problem, init=lambda key: jax.tree.map(lambda leaf: leaf.astype(np.float32), problem.init(key))
    )


SINGLE = _single(MODELS["mlp"][0])
DROPS = _single(fm.models.cnn(SHAPE, CLASSES, 0.5))


def _fleet(algorithm: Any, torch_clients: set[str], state: Path) -> LoopTransport:
    """Clients of both kinds in this process."""

    def made(name: str, columns: Any) -> Any:
        if name in torch_clients:
            return fm.deploy.torch_client(_perceptron(), LOSS, columns, client=name, state=state / name)
        return JaxNode(SINGLE, columns, name, algorithm=algorithm)

    return LoopTransport({10 + number: made(*client) for number, client in enumerate(CLIENTS.items())})


@pytest.mark.parametrize("algorithm", ["mime-adam", "mime_lite-adam", "scaffold", "fedprox"])
def test_a_mixed_cohort_gives_the_model_of_a_simulation(algorithm: str, tmp_path: Path, fact) -> None:
    """Five rounds, in which Mime with Adam primes once; every cohort of four has clients of both kinds."""
    problem, chosen = SINGLE, ALGORITHMS[algorithm]
    transport = _fleet(chosen, {"client 1", "client 3"}, tmp_path)
    options = {"rounds": 5, "cohort_size": 4, "batch_size": 4, "epochs": 2, "seed": 3, "drift": True}
    ours = run(transport, chosen, problem, waiting=Waiting(nodes=5, joining=10), **options)
    theirs = fm.simulate(chosen, problem, fm.data.from_arrays(CLIENTS), **options)
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(ours.params)} == {"float32"}
    found = float(np.abs(flat(ours.params) - flat(theirs.params)).max())
    fact("five rounds of JAX and PyTorch clients against simulation, largest difference in float32", found)
    assert found <= 1e-5
    for column in ("loss", "drift"):
        np.testing.assert_allclose(ours.history[column], theirs.history[column], rtol=1e-4)


@pytest.mark.parametrize(
    ("algorithm", "problem", "model", "options", "words"),
    [
        (a.feddyn(ETA, 0.1), SINGLE, "mlp", {}, "cannot follow FedDyn; accepted are mime and mime_lite"),
        (
            a.fedavg(ETA),
            SINGLE,
            "mlp",
            {"aggregation": fm.aggregation.quantize(8)},
            "must encode nothing, got quantize",
        ),
        (a.fedavg(ETA), DROPS, "cnn", {"test": DATA}, "cannot draw the random numbers of the loss; dropout must be 0"),
    ],
    ids=["no rule", "encoded messages", "random loss"],
)
def test_a_run_that_it_cannot_follow_refuses_it_before_the_first_round(
    algorithm: Any, problem: Any, model: str, options: Any, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    node = _node(DATA, model, np.float32)
    with pytest.raises(fm.ClusterError, match="0 of 1 nodes joined"):
        run(LoopTransport({7: node}), algorithm, problem, 1, 1, waiting=Waiting(joining=1.0), **options)
    assert "node 7 is refused: a client without JAX" in caplog.text
    assert words in caplog.text


_WITHOUT_JAX = """
import pathlib, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("jax", "jaxlib", "optax", "flax", "orbax", "sklearn"):
            raise ImportError(f"{name} is not installed")

sys.meta_path.insert(0, Absent())
import numpy as np
import torch
import fedmime as fm

folder = pathlib.Path(sys.argv[1])
columns = dict(np.load(folder / "columns.npz"))
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 5)).double()
loss = torch.nn.CrossEntropyLoss(reduction="none")
node = fm.deploy.torch_client(model, loss, columns, client="c", state=folder / "state")
for path in sorted(folder.glob("*.request")):
    path.with_suffix(".reply").write_bytes(node.answer(path.read_bytes()))
assert "jax" not in sys.modules
"""


@pytest.mark.parametrize("algorithm", ["mime-adam", "scaffold"])
def test_it_runs_where_jax_is_not_installed(algorithm: str, tmp_path: Path) -> None:
    before = _before("logistic", algorithm, np.float64)
    shelve(before, tmp_path / "state")
    np.savez(tmp_path / "columns.npz", **before.columns)
    requests = [greeting(before), *asks(before)]
    for number, request in enumerate(requests):
        (tmp_path / f"{number}.request").write_bytes(request)
    environment = os.environ | {"PYTHONPATH": str(Path(fm.__file__).parent.parent)}
    program = [sys.executable, "-c", _WITHOUT_JAX, str(tmp_path)]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    replies = iter([(tmp_path / f"{number}.reply").read_bytes() for number in range(len(requests))])
    assert error(by_messages(before, Recorded(replies)), by_reference(before)) <= 1e-12


class Recorded:
    """A node that has answered before."""

    def __init__(self, replies: Iterator[bytes]) -> None:
        self._replies = replies

    def answer(self, request: bytes) -> bytes:
        return next(self._replies)


def test_the_example_runs_and_agrees_with_simulation() -> None:
    example = Path(__file__).parents[2] / "examples" / "torch_client.py"
    environment = {name: value for name, value in os.environ.items() if name != "JAX_ENABLE_X64"}
    environment |= {"PYTHONPATH": str(Path(fm.__file__).parent.parent), "OMP_NUM_THREADS": "1"}
    program = [sys.executable, str(example)]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", done.stdout)]
    assert len(losses) == 4
    assert losses[-1] < losses[0]
    found = re.search(r"largest difference from a simulation: (\S+)", done.stdout)
    assert found
    assert float(found[1]) <= 1e-4
