"""`fedmime deploy`: the run of `fedmime train` with real clients, on this machine or on several."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import logging
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

from tyro.conf import Positional

from fedmime import named
from fedmime.cli.deployment import BUILDER, Plan, Served, here, order, planned
from fedmime.cli.masks import Insistent, insisted
from fedmime.cli.options import from_file
from fedmime.errors import ConfigError, Stopped

if TYPE_CHECKING:
    from fedmime.deploy.flower.operate import Running
    from fedmime.deploy.flower.worker import Order
    from fedmime.deploy.secure.options import SecureSum

NodeKind = Literal["fedmime", "flower"]
_SERVER = "fedmime.deploy.flower.server_app:of_setting"
_OF_FUNCTION = "fedmime.deploy.flower.builders:of_function"


@dataclasses.dataclass(frozen=True)
class Local(Served):
    """Run everything on this machine: server, network with TLS and keys, nodes. They end with the run."""

    node: NodeKind = "fedmime"
    """What nodes are: processes of ours, or Flower's SuperNodes with a worker behind each."""


@dataclasses.dataclass(frozen=True)
class Server(Served):
    """Run the server of a deployment; clients are on other machines."""

    keys: Path = Path("federation")
    """The directory that `fedmime deploy keys --server` has made; nodes/ in it holds public keys of nodes."""
    host: str = "127.0.0.1"
    """The address of this machine at which nodes reach it."""
    port: int = 9092
    """The port, the only one that nodes need."""


@dataclasses.dataclass(frozen=True)
class Client(Insistent):
    """Run the node of one client. Its data stays on this machine."""

    server: str = ""
    """The server, as HOST:PORT."""
    authority: Path = Path("ca.crt")
    """The server's ca.crt."""
    key: Path = Path("node")
    """The private key of this node, from `fedmime deploy keys --node`; its file name is the client's name."""
    data: Path = Path("data")
    """A store with this client's examples, which are pooled; with --torch, whatever its function reads."""
    task: str = "handwriting-mlp"
    """The server's task, which says what the model is, or yours as MODULE:NAME or FILE.py:NAME; not with --torch."""
    algorithm: str | None = None
    """This machine's copy of the algorithm, as MODULE:NAME or FILE.py:NAME, where the server runs one of its own."""
    base: str | None = None
    """The same for a base optimizer."""
    torch: str | None = None
    """A client in PyTorch: the function that makes it, as FILE.py:FUNCTION or MODULE:FUNCTION. It is called with a
    dictionary of name, data and state, and returns what fm.deploy.torch_client returns."""
    backend: Literal["local", "reference"] = "local"
    """Where the client is computed: by compiled programs, or eagerly, to debug it; with --torch, neither."""
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

    plan = planned(args)
    population = partition.regroup(plan.prepared.population, args.nodes)
    if (largest := int(population.sizes.max())) > args.most_examples:
        raise ConfigError(f"deploy: a node would have {largest:,} examples; give --most-examples {largest} or more")

    def orders(directory: Path) -> dict[str, Order]:
        return {name: order(population, name, directory, plan) for name in population.ids}

    with _alone(args, plan):
        if args.fresh:
            shutil.rmtree(plan.out / "nodes", ignore_errors=True)
        with operate.local(plan.out / "logs", orders, plan.most, args.node == "flower") as running:
            return _follow(args, plan, running)


def _server(args: Server) -> int:
    from fedmime.deploy.flower import operate
    from fedmime.deploy.flower.keys import CERTIFICATE, NODES

    if not (args.keys / CERTIFICATE).is_file() or not (args.keys / NODES).is_dir():
        raise ConfigError(
            f"keys: {str(args.keys)!r} holds no server's certificate; fedmime deploy keys --server makes one"
        )
    plan = planned(args)
    logs, at = plan.out / "logs", (args.host, args.port)
    with _alone(args, plan), operate.served(logs, args.keys, *at, plan.most) as running:
        sys.stderr.write(f"fedmime: serving nodes at {args.host}:{args.port}\n")
        return _follow(args, plan, running)


@contextlib.contextmanager
def _alone(args: Served, plan: Plan) -> Iterator[None]:
    """Keep other processes out of the run directory before anything is written to it or removed."""
    from fedmime.deploy.directory import LAUNCHER, alone
    from fedmime.runs.directory import RunDirectory

    with alone(plan.out, LAUNCHER):
        with RunDirectory(plan.out, args.keep):  # its server takes it again
            pass
        yield


def _client(args: Client) -> int:
    from fedmime.deploy.flower import operate
    from fedmime.deploy.flower.keys import check_name
    from fedmime.deploy.flower.launcher import Address, NodePlan

    secure = insisted(args)
    host, _, port = args.server.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"server: it must be HOST:PORT, got {args.server!r}")
    for what, path in (("authority", args.authority), ("key", args.key)):
        if not path.is_file():
            raise ConfigError(f"{what}: there is no file {str(path)!r}")
    name = check_name(args.key.name)
    state = str((args.state or args.key.with_name(f"{name}.kept")).absolute())
    if args.torch is None:
        own = _jax_order(args, name, state, secure)
    elif secure is None:
        own = _torch_order(args, args.torch, name, state)
    else:
        raise ConfigError("secure: --require-secure needs a client in JAX; one of --torch cannot mask its messages")
    _say_what_nodes_say()
    signal.signal(signal.SIGTERM, _end)
    server = Address(host, int(port), args.authority.absolute())
    operate.node(NodePlan(name, args.key.absolute(), server, own), args.patience, args.node == "flower")
    return 0


def _jax_order(args: Client, name: str, state: str, secure: SecureSum | None) -> Order:
    """How to build the node of a client whose examples are a store."""
    from fedmime.cli import session
    from fedmime.deploy.flower.worker import Order
    from fedmime.deploy.secure.options import fields_of
    from fedmime.deploy.terms import OWN
    from fedmime.experiments import tasks

    task = named.absolute(args.task)
    own = {field: named.absolute(value) for field in OWN if (value := getattr(args, field)) is not None}
    for field, value in own.items():
        named.load(field, value)
    tasks.get(task)
    session.start()
    store = str(args.data.absolute())
    given = {"task": task, "store": store, "name": name, "state": state, "own": own, "backend": args.backend}
    return Order(BUILDER, given | {"secure": fields_of(secure)}, here(task, *own.values()), files=(store,))


def _torch_order(args: Client, function: str, name: str, state: str) -> Order:
    """How to build the node of a client that a function makes. This process does without JAX."""
    from fedmime.deploy.flower.worker import Order

    place, _, called = function.rpartition(":")
    if not place or not called.isidentifier():
        raise ConfigError(f"torch: it must be FILE.py:FUNCTION or MODULE:FUNCTION, got {function!r}")
    here = Path.cwd()
    if place.endswith(".py"):  # what lies beside the file can be imported from there
        here, function = (here / place).parent, f"{here / place}:{called}"
        code = sorted(here.glob("*.py"))
    else:
        package = here / place.partition(".")[0]
        code = [package if package.is_dir() else package.with_suffix(".py")]
    data = args.data.absolute()
    config = {"name": name, "data": str(data), "state": state}
    return Order(
        _OF_FUNCTION, {"function": function, "config": config}, (str(here),), files=(*map(str, code), str(data))
    )


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


def _follow(args: Served, plan: Plan, running: Running) -> int:
    """Follow a run to its end, tell its result as `fedmime train` does, and write its report."""
    from fedmime.cli import report
    from fedmime.cli.progress import Progress
    from fedmime.cli.signals import Signals
    from fedmime.cli.train import tell
    from fedmime.deploy.flower import operate
    from fedmime.deploy.secure.options import fields_of
    from fedmime.engine import Run
    from fedmime.experiments.setting import own, plain

    prepared, out = plan.prepared, plan.out
    s = prepared.setting
    assert s.rounds is not None
    assert s.cohort is not None
    owners = running.launcher.directory / "owners.json"
    running.admission.control.tell_owners(owners)
    arguments = {
        "setting": plain(s),
        "run_dir": str(out.absolute()),
        "data_dir": None if args.data_dir is None else str(args.data_dir.absolute()),
        "saving": {"every": args.checkpoint_every, "keep": args.keep, "fresh": args.fresh},
        "waiting": {
            "nodes": args.nodes,
            "joining": args.wait,
            "deadline": args.deadline,
            "most_examples": args.most_examples,
        },
        "command": sys.argv,
        "secure": fields_of(plan.secure),
        "owners": str(owners),
        "path": here(s.task, *own(s).values()),
    }
    told = {"call": _SERVER, "most": plan.most, "arguments": arguments}
    with Signals() as signals, Progress(prepared.label, s.rounds, plan.bytes * s.cohort, args.quiet) as progress:

        def on_event(event: Any) -> None:
            info: Any = SimpleNamespace(round=event["round"], loss=event["loss"], epsilon=event["epsilon"])
            progress.on_round(info, event["measured"])

        operate.follow(running, told, on_event, signals.stop)
    tell(prepared, Run.load(out), out, args.json)
    if not args.json and importlib.util.find_spec("matplotlib") is not None:  # it is an extra, too
        report.run(report.Report((out,)))
    return 0
