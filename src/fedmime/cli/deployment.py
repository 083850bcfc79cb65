"""What `fedmime deploy` does before anything starts: the options of a server, and the plan that follows from them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedmime import named
from fedmime.cli.masks import Masked, masks
from fedmime.cli.naming import directory
from fedmime.cli.options import Saved, setting_of
from fedmime.errors import ConfigError

if TYPE_CHECKING:
    from fedmime.deploy.flower.worker import Order
    from fedmime.deploy.secure.options import SecureSum
    from fedmime.deploy.terms import Terms
    from fedmime.experiments.train import Prepared

BUILDER = "fedmime.deploy.flower.builders:of_task"
_BESIDE = 1 << 20  # bytes of a message beside its arrays, at most


@dataclasses.dataclass(frozen=True)
class Served(Masked, Saved):
    """A setting, and how a server runs it."""

    checkpoint_every: int = 1
    """Rounds between checkpoints."""
    nodes: int = 5
    """Nodes that take part; the run begins when so many are there."""
    deadline: float = 600.0
    """Seconds that nodes have for each exchange of a round."""
    wait: float = 300.0
    """Seconds until so many nodes have to be there."""
    most_examples: int = 1_000_000
    """Examples that a node may claim to have, since they are its weight; a node with more is refused."""


class Plan(NamedTuple):
    """What is run, and where it is written."""

    prepared: Prepared
    out: Path
    secure: SecureSum | None
    bytes: int
    """That a client exchanges with the server in a round."""

    @property
    def most(self) -> int:
        """Bytes of the largest message that a node may send."""
        return 2 * self.bytes + _BESIDE


def planned(args: Served) -> Plan:
    """What a run needs; wrong numbers are refused before anything starts."""
    from fedmime.cli import session
    from fedmime.deploy.secure.suitable import check_terms
    from fedmime.deploy.terms import terms_of
    from fedmime.engine.arguments import MOST_EXAMPLES
    from fedmime.engine.samplers import over_selected
    from fedmime.experiments import messages, recipes, tasks, train
    from fedmime.validation import NON_NEGATIVE, POSITIVE, count, real

    count("deploy", "nodes", args.nodes, least=1)
    real("deploy", "deadline", args.deadline, POSITIVE)
    real("deploy", "wait", args.wait, NON_NEGATIVE)
    count("deploy", "most_examples", args.most_examples, 1, MOST_EXAMPLES)
    session.start()
    secure = masks(args)
    setting = setting_of(args)
    cohort = args.nodes if setting.cohort is None else setting.cohort
    if cohort > args.nodes:
        raise ConfigError(f"setting: cohort={cohort} exceeds the {args.nodes} nodes; lower it, or wait for more")
    task = tasks.get(setting.task)
    s = recipes.resolved(dataclasses.replace(setting, cohort=cohort), task)
    algorithm, aggregation, problem = recipes.algorithm(s), messages.aggregator(s), tasks.problem(s.task)
    terms = terms_of(algorithm, aggregation, problem, secure=secure)
    asked = over_selected(cohort, s.participation.over_selection)
    check_terms(terms, asked)
    population = tasks.population(s.task, args.data_dir)  # the test set, and in a rehearsal the clients' examples
    prepared = train.Prepared(s, problem, population, algorithm, aggregation)
    name = f"{prepared.label}-seed{args.seed}-deployed{'-secure' * (secure is not None)}"
    return Plan(prepared, args.out or directory(task.name, name), secure, _bytes(terms, asked))


def here(*names: str) -> tuple[str, ...]:
    """Where another process looks for modules of the operator's own: in this directory, if any of the names is one."""
    own_modules = [name for name in names if named.is_named(name) and not name.rpartition(":")[0].endswith(".py")]
    return (str(Path.cwd()),) if own_modules else ()


def order(population: Any, name: str, directory: Path, plan: Plan) -> Order:
    """How to build the node of one client of a regrouped population, whose examples are written to a store.

    In a secure run, the nodes of a rehearsal insist on its masks.
    """
    from fedmime.data import from_arrays
    from fedmime.deploy.flower.worker import Order
    from fedmime.deploy.secure.options import fields_of
    from fedmime.deploy.terms import ours
    from fedmime.experiments.setting import own

    store = directory / f"{name}.store"
    from_arrays({name: population.client(name)}).save(store)
    state = (plan.out / "nodes" / name).absolute()
    setting = plan.prepared.setting
    given = {"task": setting.task, "store": str(store), "name": name, "state": str(state), "own": ours(setting)}
    path = here(setting.task, *own(setting).values())
    return Order(BUILDER, given | {"secure": fields_of(plan.secure)}, path, files=(str(store),))


def _bytes(terms: Terms, asked: int) -> int:
    """Bytes that a client exchanges with the server in a round, if so many clients are asked."""
    from fedmime.aggregation import communication
    from fedmime.deploy.layout import layout_of
    from fedmime.deploy.secure.traffic import secure_cost

    cost = communication.cost(terms.algorithm, terms.model, terms.aggregator)
    if terms.secure is not None:
        cost = secure_cost(cost, terms.algorithm, layout_of(terms.algorithm, terms.model), terms.secure, asked)
    return cost.bytes
