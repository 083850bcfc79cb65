"""What a run is asked for: frozen dataclasses that the command line, configuration files and sweeps share.

Nothing here needs JAX, so that the command line can explain itself at once.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from fedmime import named
from fedmime.errors import ConfigError
from fedmime.experiments.kinds import fitted

__all__ = ["Inner", "Messages", "Optimizer", "Server", "Setting", "Taking", "read"]

AlgorithmName = Literal[
    "mime",
    "mime_lite",
    "mime_mvr",
    "mime_lite_mvr",
    "fedavg",
    "fedprox",
    "scaffold",
    "feddyn",
    "fednova",
    "fedvarp",
    "fedexp",
    "fedcm",
    "ghbm",
    "fedacg",
    "diloco",
    "server_only",
    "server_only_mvr",
    "centralized",
]
BaseName = Literal["sgd", "momentum", "adagrad", "adam", "rmsprop", "yogi", "sm3", "adafactor", "adamw", "nesterov"]
ModelName = Literal["logistic", "mlp", "cnn", "char_lstm", "word_lstm"]
TrackerName = Literal["wandb", "mlflow"]
ALGORITHMS: tuple[str, ...] = get_args(AlgorithmName)
BASES: tuple[str, ...] = get_args(BaseName)
MODELS: tuple[str, ...] = get_args(ModelName)
Own = str  # code of the user's own, as module:name or file.py:name; see `named`
TRACKING = ("mime", "mime_lite", "server_only", "centralized")  # algorithms with a base optimizer of their own


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """Numbers of the base optimizer; what is not given is its own default."""

    beta: float | None = None
    """Momentum m = (1 - β) g + β m, a moving average; PyTorch's m = g + β m takes 1 - β times its rate.
    Also the β = 1 - a of the MVR variants (default 0.9), and the momentum of GHBM, FedACG and DiLoCo."""
    beta1: float | None = None
    """Adam, AdamW and Yogi: of the gradient."""
    beta2: float | None = None
    """Adam, AdamW, RMSProp, Yogi: of its square."""
    eps: float | None = None
    """Added to the root of the accumulator; FedExP: to the squared mean movement."""
    initial: float | None = None
    """Where the accumulator starts."""
    floor: float | None = None
    """The least that is ever divided by."""
    weight_decay: float | None = None
    """AdamW: what a unit of the rate takes away of every weight."""


@dataclasses.dataclass(frozen=True)
class Inner(Optimizer):
    """The clients' own optimizer in FedAvg, FedNova and DiLoCo, from a fresh state in every round, with its numbers."""

    optimizer: BaseName | Own | None = None
    """Its name; by default SGD, in DiLoCo AdamW with a weight decay of 0.1."""


@dataclasses.dataclass(frozen=True)
class Server:
    """The server's step in FedAvg, FedProx, SCAFFOLD, FedDyn, FedNova, FedVARP, FedCM and GHBM."""

    optimizer: BaseName | Own | None = None
    """Its optimizer; by default --base."""


@dataclasses.dataclass(frozen=True)
class Taking:
    """Who takes part in a round."""

    sampler: Literal["uniform", "by_size", "with_replacement", "diurnal", "poisson"] = "uniform"
    """How cohorts are drawn."""
    drop_out: float = 0.0
    """The chance that a client asked never reports."""
    over_selection: float = 1.0
    """How many times the cohort are asked."""
    minimum: float = 0.5
    """The share of the cohort below which a round is abandoned."""


@dataclasses.dataclass(frozen=True)
class Messages:
    """What happens to messages on their way; steps are taken in the order of these options."""

    clip: float | None = None
    """Clip every client's update to this norm."""
    clip_gradient: float | None = None
    """Clip every client's full gradient to this norm; by default that of updates."""
    attack: Literal["sign_flip", "scaled", "nan", "shift"] | None = None
    """What malicious clients do, who do not clip, to try robust means."""
    attackers: float = 0.2
    """The share of clients that are malicious."""
    attack_scale: float | None = None
    """How much longer their messages are; by default what suits the attack."""
    random_k: float | None = None
    """Send this fraction of the weights, drawn at random; unbiased."""
    top_k: float | None = None
    """Send this fraction of the weights, the largest ones; biased."""
    low_rank: int | None = None
    """Send matrices as products of this rank; biased."""
    quantize: int | None = None
    """Bits of every number that clients send, 1 to 16."""
    rotate: bool = False
    """Rotate messages at random before they are quantized."""
    quantize_down: int | None = None
    """Bits of every number that the server sends, 1 to 16."""
    error_feedback: bool = False
    """Clients add what the encoding of their last update lost; they must keep it."""
    noise: float | None = None
    """Differential privacy: noise on sums of clipped messages, in units of the clipping norm. It needs clip."""
    epsilon: float | None = None
    """Differential privacy: find the noise with which the run ends at this epsilon, instead of giving it."""
    delta: float = 1e-5
    """Differential privacy: the delta of epsilon."""
    quantile: float | None = None
    """Differential privacy: let the clipping norms follow this quantile of the clients' norms."""
    combine: Literal["mean", "median", "trimmed_mean", "geometric_median", "krum"] = "mean"
    """How the server makes one message of all; all but the mean withstand some malicious clients."""
    trim: float = 0.2
    """Trimmed mean: the fraction that is left out at each end; Krum: the share of clients that may be malicious."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """Everything that decides the numbers of a run."""

    task: str = "handwriting-mlp"
    """What to learn: a name of `fedmime list tasks`, or your own fm.Task as MODULE:NAME or FILE.py:NAME."""
    algorithm: AlgorithmName | Own = "mime"
    """How to learn it; your own as MODULE:NAME or FILE.py:NAME."""
    base: BaseName | Own | None = None
    """Base optimizer of Mime and MimeLite (default momentum), server optimizer of FedAvg and its kin (default sgd);
    your own as MODULE:NAME or FILE.py:NAME."""
    eta: float | None = None
    """Client rate; by default one that suits the task and base."""
    eta_server: float | None = None
    """Server rate; by default 1, in DiLoCo 0.7."""
    decay: Literal["constant", "cosine", "linear"] = "constant"
    """How the client rate falls from eta over the rounds."""
    mu: float | None = None
    """Weight of the proximal term in FedProx (default 0.1), FedNova and FedACG (default 0)."""
    alpha: float = 0.1
    """FedDyn: weight of the dynamic term. FedCM: weight of a client's own gradient."""
    tau: int = 10
    """GHBM: over how many rounds the momentum reaches."""
    cap: float | None = None
    """FedExP: the largest server rate; by default there is none."""
    apply: Literal["frozen", "lookahead"] | None = None
    """Mime: use the server's statistics as they are, or the whole optimizer from them."""
    state: Literal["fixed", "local"] = "fixed"
    """Mime: `local` lets each client move a copy of the statistics (Loc-Mime)."""
    split: bool = False
    """Half of the cohort sends gradients, the other half trains."""
    prime_rounds: int | None = None
    """Gradient-only rounds before the first local step; by default what the base needs."""
    anchor: Literal["previous", "current"] = "previous"
    """MVR: the point of the correction."""
    rounds: int | None = None
    """Rounds of communication; by default the task's."""
    cohort: int | None = None
    """Clients a round; by default the task's."""
    batch: int | None = None
    """Examples of a local step; by default the task's."""
    epochs: int | None = None
    """Local passes over a client's data; by default the task's."""
    steps: int | None = None
    """Local steps, instead of epochs."""
    seed: int = 0
    """Of everything random."""
    weights: Literal["examples", "uniform"] = "examples"
    """How clients are averaged."""
    evaluate_every: int = 10
    """Rounds between evaluations on the test set."""
    clients_every: int | None = None
    """Rounds between evaluations of single clients; by default after the last round only."""
    target: float | None = None
    """The accuracy that 'rounds to target' asks for; by default the task's."""
    target_gap: float | None = None
    """Ask for a training loss so close to its optimum, instead of an accuracy; by default the task's."""
    optimum: float | None = None
    """The least training loss there is; by default what the task knows."""
    drift: bool = True
    """Measure how far clients drift."""
    optimizer: Optimizer = Optimizer()
    server: Server = Server()
    client: Inner = Inner()
    participation: Taking = Taking()
    aggregation: Messages = Messages()


def own(setting: Setting) -> dict[str, str]:
    """The names of the user's own code in a setting, by the field that holds them; not that of its task."""
    held = {
        "algorithm": setting.algorithm,
        "base": setting.base,
        "server.optimizer": setting.server.optimizer,
        "client.optimizer": setting.client.optimizer,
    }
    return {field: name for field, name in held.items() if name is not None and named.is_named(name)}


def renamed(setting: Setting, names: Mapping[str, str]) -> Setting:
    """The same setting with other names in the fields of `own`."""
    flat = {field: name for field, name in names.items() if "." not in field}
    nested = {field.partition(".")[0]: name for field, name in names.items() if "." in field}
    parts = {part: dataclasses.replace(getattr(setting, part), optimizer=name) for part, name in nested.items()}
    changes: dict[str, Any] = flat | parts
    return dataclasses.replace(setting, **changes)


def located(setting: Setting) -> Setting:
    """The same setting for another process or a later day: files and stores that it names have absolute paths."""
    found = store_of(setting.task)
    task = named.absolute(setting.task) if found is None else f"{found[0]}@{Path(found[1]).absolute()}"
    names = {field: named.absolute(name) for field, name in own(setting).items()}
    return renamed(dataclasses.replace(setting, task=task), names)


def store_of(task: str) -> tuple[str, str] | None:
    """The model and the store of a task that is written `model@store`; None for other tasks."""
    model, at, store = task.partition("@")
    return (model, store) if at and store and model in MODELS else None


def plain(setting: Any) -> dict[str, Any]:
    """A setting as YAML can write it."""
    return dataclasses.asdict(setting)


def read(path: Path, default: Any) -> Any:
    """A setting from a YAML file: the default with the file's fields, nested or dotted, put in."""
    from fedmime.runs.yaml_file import read_mapping

    try:
        found = read_mapping(path)
    except OSError as error:
        raise ConfigError(f"config: {str(path)!r} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"config: {str(path)!r} is refused: {error}") from None
    return merged(default, found, str(path))


def merged(default: Any, fields: Mapping[Any, Any], where: str, prefix: str = "") -> Any:
    """A dataclass with fields replaced; unknown or repeated names and values of another kind are refused."""
    known = {field.name: getattr(default, field.name) for field in dataclasses.fields(default)}
    kinds = get_type_hints(type(default))
    changes: dict[str, Any] = {}
    for key, value in fields.items():
        name, _, inner = str(key).replace("-", "_").partition(".")
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"accepted are {', '.join(known)}"
            raise ConfigError(f"config: {where}: unknown field {prefix + str(key)!r}; {hint}")
        current = changes.get(name, known[name])
        if dataclasses.is_dataclass(current):
            part = {inner: value} if inner else value
            if not isinstance(part, dict):
                raise ConfigError(f"config: {where}: {prefix + name} must be a mapping of fields, got {value!r:.80}")
            changes[name] = merged(current, part, where, f"{prefix}{name}.")
        elif inner:
            raise ConfigError(f"config: {where}: {prefix + name} has no fields, so there is no {prefix + str(key)!r}")
        elif name in changes:
            raise ConfigError(f"config: {where}: {prefix + name} is given twice, the second time as {value!r:.80}")
        else:
            try:
                changes[name] = fitted(kinds[name], value)
            except ValueError as error:
                raise ConfigError(f"config: {where}: {prefix + name} must be {error}, got {value!r:.80}") from None
    return dataclasses.replace(default, **changes)
