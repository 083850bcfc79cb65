"""FedJAX: its own FedAvg, MimeLite and Mime with its jit back end, on models built from haiku layers."""

from collections.abc import Iterable, Iterator
from typing import Any

import fedjax
import fedjax.algorithms
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
from protocol import Case, serve
from work_file import WorkFile

CHUNK = 256  # examples at a time for the full gradient; the widest that helps
MASK = "__mask__"


class GivenOrder(fedjax.ClientDataset):
    """A client whose training batches come in the given order, short ones masked as FedJAX's padded batches are."""

    def __init__(self, columns: dict[str, np.ndarray], positions: list[np.ndarray], batch: int) -> None:
        super().__init__(columns)
        self._tables = [(np.resize(p, batch), np.arange(batch) < len(p)) for p in positions]

    def shuffle_repeat_batch(self, hparams: Any = None, **_: Any) -> Iterable[dict[str, np.ndarray]]:
        return list(self._batches())

    def _batches(self) -> Iterator[dict[str, np.ndarray]]:
        for rows, mask in self._tables:
            yield {**{name: column[rows] for name, column in self.raw_examples.items()}, MASK: mask}


class Simulation:
    """One algorithm of FedJAX on the cohort."""

    def __init__(self, work: WorkFile, case: Case) -> None:
        self._work = work
        self._algorithm = algorithm(case, per_example_loss(work.model), work)
        keys = jax.random.split(jax.random.PRNGKey(0), len(work.clients))
        self._clients = [
            (i, GivenOrder(columns, work.batches(i, case["epochs"]), work.batch), keys[i])
            for i, columns in enumerate(work.clients)
        ]
        self.reset()

    def reset(self) -> None:
        self._state = self._algorithm.init(jax.tree_util.tree_map(jnp.asarray, to_haiku(self._work.initial)))

    def round(self) -> None:
        self._state, _ = self._algorithm.apply(self._state, self._clients)

    def wait(self) -> None:
        jax.block_until_ready(self._state.params)

    def weights(self) -> dict[str, np.ndarray]:
        return from_haiku(self._state.params)


def algorithm(case: Case, loss: Any, work: WorkFile) -> fedjax.FederatedAlgorithm:
    """FedJAX's momentum adds gradients up where the paper averages them, so its rate is (1 - beta) of ours."""
    order = fedjax.ShuffleRepeatBatchHParams(batch_size=work.batch, num_epochs=case["epochs"])
    if case["algorithm"] == "fedavg":
        optimizers = fedjax.optimizers.sgd(case["eta"]), fedjax.optimizers.sgd(1.0)
        return fedjax.algorithms.fed_avg.federated_averaging(fedjax.grad(loss), *optimizers, order)
    momentum = case["base"] == "momentum"
    rate = case["eta"] * (1 - case["beta"]) if momentum else case["eta"]
    base = fedjax.optimizers.sgd(rate, momentum=case["beta"] if momentum else None)
    chunk = work.batch if work.model in ("cnn", "char_lstm") else CHUNK
    full = fedjax.PaddedBatchHParams(batch_size=chunk)
    make = {"mime": fedjax.algorithms.mime.mime, "mime_lite": fedjax.algorithms.mime_lite.mime_lite}[case["algorithm"]]
    return make(loss, base, order, full, server_learning_rate=1.0)


def per_example_loss(model: str) -> Any:
    """`(params, batch, rng) -> losses`."""
    network = hk.without_apply_rng(hk.transform(character_logits if model == "char_lstm" else IMAGES[model]))

    def loss(params: Any, batch: dict[str, jax.Array], rng: jax.Array) -> jax.Array:
        logits = jax.nn.log_softmax(network.apply(params, batch["x"]))
        losses = -jnp.take_along_axis(logits, batch["y"][..., None], axis=-1)[..., 0]
        return losses if losses.ndim == 1 else losses.mean(axis=1)

    return loss


def _linear(x: jax.Array, name: str, width: int) -> jax.Array:
    return hk.Linear(width, name=name)(x)


def _logistic(x: jax.Array) -> jax.Array:
    return _linear(hk.Flatten()(x), "dense0", 62)


def _mlp(x: jax.Array) -> jax.Array:
    a = jax.nn.relu(_linear(hk.Flatten()(x), "dense0", 300))
    return _linear(jax.nn.relu(_linear(a, "dense1", 100)), "dense2", 62)


def _cnn(x: jax.Array) -> jax.Array:
    a = jax.nn.relu(hk.Conv2D(32, 3, padding="VALID", name="conv0")(x))
    a = jax.nn.relu(hk.Conv2D(64, 3, padding="VALID", name="conv1")(a))
    a = hk.Flatten()(hk.MaxPool((2, 2, 1), (2, 2, 1), padding="VALID")(a))
    return _linear(jax.nn.relu(_linear(a, "dense0", 128)), "dense1", 62)


IMAGES = {"logistic": _logistic, "mlp": _mlp, "cnn": _cnn}


def character_logits(x: jax.Array) -> jax.Array:
    """FedJAX's own model unrolls 80 steps, which compiles for minutes; a scan is what it would be today."""
    a = hk.Embed(90, 8, name="embedding")(x)
    core = hk.DeepRNN([hk.LSTM(256, name=f"lstm{i}") for i in range(2)])
    a, _ = hk.dynamic_unroll(core, a, core.initial_state(x.shape[0]), time_major=False)
    return _linear(a, "dense", 90)


def to_haiku(weights: dict[str, np.ndarray]) -> dict[str, dict[str, np.ndarray]]:
    """The work file's weights by haiku's names; an LSTM has one matrix, gates i g f o, and adds 1 to f itself."""
    params: dict[str, dict[str, np.ndarray]] = {}
    for name, value in weights.items():
        layer, _, kind = name.partition("/")
        if layer == "embedding":
            params[layer] = {"embeddings": value}
        elif layer.startswith("lstm") and kind == "w":
            both = np.concatenate([value, weights[f"{layer}/u"]])
            bias = _swap_gates(weights[f"{layer}/b"]) - _forget(len(weights[f"{layer}/b"]))
            params[f"{layer}/linear"] = {"w": _swap_gates(both), "b": bias}
        elif not layer.startswith("lstm"):
            params.setdefault(layer, {})[kind] = value.T if value.ndim == 2 else value
    return params


def from_haiku(params: Any) -> dict[str, np.ndarray]:
    """The inverse of `to_haiku`."""
    weights: dict[str, np.ndarray] = {}
    for layer, arrays in params.items():
        values = {kind: np.asarray(value) for kind, value in arrays.items()}
        name = layer.partition("/")[0]
        if name == "embedding":
            weights[name] = values["embeddings"]
        elif name.startswith("lstm"):
            both, hidden = _swap_gates(values["w"]), values["w"].shape[1] // 4
            weights[f"{name}/w"], weights[f"{name}/u"] = both[:-hidden], both[-hidden:]
            weights[f"{name}/b"] = _swap_gates(values["b"] + _forget(len(values["b"])))
        else:
            weights |= {f"{name}/{kind}": v.T if v.ndim == 2 else v for kind, v in values.items()}
    return weights


def _swap_gates(a: np.ndarray) -> np.ndarray:
    """Exchange the second and third quarter of the last axis: i f g o and i g f o."""
    i, f, g, o = np.split(a, 4, axis=-1)
    return np.concatenate([i, g, f, o], axis=-1)


def _forget(width: int) -> np.ndarray:
    return np.repeat(np.asarray([0, 0, 1, 0], np.float32), width // 4)


if __name__ == "__main__":
    serve(Simulation)
