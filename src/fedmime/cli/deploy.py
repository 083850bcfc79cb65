"""`fedmime deploy`: the run of `fedmime train` with real clients, on this machine or on several."""

from __future__ import annotations

import dataclasses
import importlib.util
import logging
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

from tyro.conf import Positional

from fedmime.cli.options import Saved, from_file, setting_of
from fedmime.errors import ConfigError, Stopped

if TYPE_CHECKING:
    from fedmime.deploy.flower.operate import Running
    from fedmime.deploy.flower.worker import Order
    from fedmime.experiments.train import Prepared

NodeKind = Literal["fedmime", "flower"]
_SERVER = "fedmime.deploy.flower.server_app:of_setting"
_BUILDER = "fedmime.deploy.flower.builders:of_task"
_BESIDE = 1 << 20  # bytes of a message beside its arrays, at most


@dataclasses.dataclass(frozen=True)
class _Served(Saved):
    checkpoint_every: int = 1
    """Rounds between checkpoints."""
    nodes: int = 5
    """Nodes that take part; the run begins when so many are there."""
    deadline: float = 600.0
    """Seconds that nodes have for each exchange of a round."""
    wait: float = 300.0
    """Seconds until so many nodes have to be there."""


@dataclasses.dataclass(frozen=True)
class Local(_Served):
    """Run everything on this machine: server, network with TLS and keys, nodes. They end with the run."""

    node: NodeKind = "fedmime"
    """What nodes are: processes of ours, or Flower's SuperNodes with a worker behind each."""


@dataclasses.dataclass(frozen=True)
class Server(_Served):
    """Run the server of a deployment; clients are on other machines."""

    keys: Path = Path("federation")
    """The directory that `fedmime deploy keys --server` has made; nodes/ in it holds public keys of nodes."""
    host: str = "127.0.0.1"
    """The address of this machine at which nodes reach it."""
    port: int = 9092
    """The port, the only one that nodes need."""


@dataclasses.dataclass(frozen=True)
class Client:
    """Run the node of one client. Its data stays on this machine."""

    server: str = ""
    """The server, as HOST:PORT."""
    authority: Path = Path("ca.crt")
    """The server's ca.crt."""
    key: Path = Path("node")
    """The private key of this node, from `fedmime deploy keys --node`; its file name is the client's name."""
    data: Path = Path("data")
    """A store with this client's examples, which are pooled."""
    task: str = "handwriting-mlp"
    """The server's task, which says what the model is."""
    state: Path | None = None
    """Where the client keeps what belongs to it between rounds; by default beside its key."""
    node: NodeKind = "fedmime"
    """What it is: one process of ours, or Flower's SuperNode with a worker behind it."""
    patience: float = 3600.0
    """Seconds for which a server that is away, or does not know this node, is tried again."""


@dataclasses.dataclass(frozen=True)
class Keys:
    """Make the certificate of a server, or the key of a node."""

    directory: Positional[Path]
    """Where they are written to."""
    server: tuple[str, ...] = ()
    """Make a server's: the names and addresses under which nodes reach it."""
    node: str | None = None
    """Make a node's: the client's name."""


Deploy = Local | Server | Client | Keys


def defaults(words: Sequence[str]) -> Local | Server | None:
    """What an action does unless told otherwise, where a file may say it."""
    kinds: dict[str, type[Any]] = {"local": Local, "server": Server}
    return from_file(kinds[words[0]], words) if words and words[0] in kinds else None


def run(args: Deploy) -> int:
    """Do what was asked; gives the exit code."""
    if importlib.util.find_spec("flwr") is None:
        raise ConfigError("deploying is an extra: pip install 'fedmime[deploy]'")
    if sys.platform != "linux" and not isinstance(args, Keys):
        raise ConfigError(f"deploying takes Linux, whose processes can be kept together; this is {sys.platform}")
    actions: dict[type, Callable[..., int]] = {Local: _local, Server: _server, Client: _client, Keys: _keys}
    return actions[type(args)](args)


def _local(args: Local) -> int:
    from fedmime.data import partition
    from fedmime.deploy.flower import operate

    prepared, out = _prepared(args)
    population = partition.regroup(prepared.population, args.nodes)
    if args.fresh:
        shutil.rmtree(out / "nodes", ignore_errors=True)

    def orders(directory: Path) -> dict[str, Order]:
        return {name: _order(args.task, population, name, directory, out) for name in population.ids}

    with operate.local(out / "logs", orders, _most(prepared), args.node == "flower") as running:
        return _follow(args, prepared, out, running)


def _server(args: Server) -> int:
    from fedmime.deploy.flower import operate
    from fedmime.deploy.flower.keys import CERTIFICATE, NODES

    if not (args.keys / CERTIFICATE).is_file() or not (args.keys / NODES).is_dir():
        raise ConfigError(
            f"keys: {str(args.keys)!r} holds no server's certificate; fedmime deploy keys --server makes one"
        )
    prepared, out = _prepared(args)
    with operate.served(out / "logs", args.keys, args.host, args.port, _most(prepared)) as running:
        sys.stderr.write(f"fedmime: serving nodes at {args.host}:{args.port}\n")
        return _follow(args, prepared, out, running)


def _client(args: Client) -> int:
    from fedmime.cli import session
    from fedmime.deploy.flower import operate
    from fedmime.deploy.flower.keys import check_name
    from fedmime.deploy.flower.launcher import Address, NodePlan
    from fedmime.deploy.flower.worker import Order
    from fedmime.experiments import tasks

    host, _, port = args.server.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"server: it must be HOST:PORT, got {args.server!r}")
    for what, path in (("authority", args.authority), ("key", args.key)):
        if not path.is_file():
            raise ConfigError(f"{what}: there is no file {str(path)!r}")
    tasks.get(args.task)
    name = check_name(args.key.name)
    state = args.state or args.key.with_name(f"{name}.kept")
    order = Order(_BUILDER, {"task": args.task, "store": str(args.data.absolute()), "name": name, "state": str(state)})
    session.start()
    _say_what_nodes_say()
    signal.signal(signal.SIGTERM, _end)
    server = Address(host, int(port), args.authority.absolute())
    operate.node(NodePlan(name, args.key.absolute(), server, order), args.patience, args.node == "flower")
    return 0


def _say_what_nodes_say() -> None:
    """Write a line to standard error when a node finds or loses its server."""
    log, handler = logging.getLogger("fedmime.node"), logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s fedmime: %(message)s", "%H:%M:%S"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False


def _end(number: int, frame: object) -> None:
    raise Stopped(f"the node was ended by {signal.Signals(number).name}", number)


def _keys(args: Keys) -> int:
    from fedmime.deploy.flower import keys

    if bool(args.server) == bool(args.node):
        raise ConfigError("keys: say --server with its names and addresses, or --node with its name, and not both")
    if args.server:
        keys.make_server(args.directory, args.server)
        authority, nodes = args.directory / keys.AUTHORITY, args.directory / keys.NODES
        words = f"give nodes {authority}, and put their public keys into {nodes}"
    else:
        path = keys.make_node(args.directory, args.node or "")
        words = f"{path} stays here; give the server {path}.pub"
    sys.stdout.write(f"{words}\n")
    return 0


def _prepared(args: _Served) -> tuple[Prepared, Path]:
    """What a run needs, and its directory; wrong numbers are refused before anything starts."""
    from fedmime.cli import session
    from fedmime.experiments import messages, recipes, tasks, train
    from fedmime.validation import NON_NEGATIVE, POSITIVE, count, real

    count("deploy", "nodes", args.nodes, least=1)
    real("deploy", "deadline", args.deadline, POSITIVE)
    real("deploy", "wait", args.wait, NON_NEGATIVE)
    session.start()
    setting = setting_of(args)
    cohort = args.nodes if setting.cohort is None else setting.cohort
    if cohort > args.nodes:
        raise ConfigError(f"setting: cohort={cohort} exceeds the {args.nodes} nodes; lower it, or wait for more")
    task = tasks.get(setting.task)
    s = recipes.resolved(dataclasses.replace(setting, cohort=cohort), task)
    population = task.population(args.data_dir)  # the server's test set, and in a rehearsal the clients' examples
    prepared = train.Prepared(s, task.problem(), population, recipes.algorithm(s), messages.aggregator(s))
    name = f"{prepared.label.replace(' ', '-')}-seed{args.seed}-deployed"
    return prepared, args.out or Path("runs") / args.task / name


def _order(task: str, population: Any, name: str, directory: Path, out: Path) -> Order:
    """How to build the node of one client of a regrouped population, whose examples are written to a store."""
    from fedmime.data import from_arrays
    from fedmime.deploy.flower.worker import Order

    store = directory / f"{name}.store"
    from_arrays({name: population.client(name)}).save(store)
    state = (out / "nodes" / name).absolute()
    return Order(_BUILDER, {"task": task, "store": str(store), "name": name, "state": str(state)})


def _most(prepared: Prepared) -> int:
    """Bytes of the largest message that a node may send."""
    return 2 * _cost(prepared) + _BESIDE


def _cost(prepared: Prepared) -> int:
    """Bytes that a client exchanges with the server in a round."""
    import jax

    from fedmime.aggregation import communication

    model = jax.eval_shape(prepared.problem.init, jax.eval_shape(jax.random.key, 0))
    return communication.cost(prepared.algorithm, model, prepared.aggregation).bytes


def _follow(args: _Served, prepared: Prepared, out: Path, running: Running) -> int:
    """Follow a run to its end, tell its result as `fedmime train` does, and write its report."""
    from fedmime.cli import report
    from fedmime.cli.progress import Progress
    from fedmime.cli.signals import Signals
    from fedmime.cli.train import tell
    from fedmime.deploy.flower import operate
    from fedmime.engine import Run
    from fedmime.experiments.setting import plain

    s = prepared.setting
    assert s.rounds is not None
    assert s.cohort is not None
    arguments = {
        "setting": plain(s),
        "run_dir": str(out.absolute()),
        "data_dir": None if args.data_dir is None else str(args.data_dir.absolute()),
        "saving": {"every": args.checkpoint_every, "keep": args.keep, "fresh": args.fresh},
        "waiting": {"nodes": args.nodes, "joining": args.wait, "deadline": args.deadline},
        "command": sys.argv,
    }
    plan = {"call": _SERVER, "most": _most(prepared), "arguments": arguments}
    with Signals() as signals, Progress(prepared.label, s.rounds, _cost(prepared) * s.cohort, args.quiet) as progress:

        def on_event(event: Any) -> None:
            info: Any = SimpleNamespace(round=event["round"], loss=event["loss"], epsilon=event["epsilon"])
            progress.on_round(info, event["measured"])

        operate.follow(running, plan, on_event, signals.stop)
    tell(prepared, Run.load(out), out, args.json)
    if not args.json and importlib.util.find_spec("matplotlib") is not None:  # it is an extra, too
        report.run(report.Report((out,)))
    return 0
