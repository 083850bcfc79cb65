"""Real deployments on this machine whose nodes may be faulty, and runs with them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import fedmime as fm
from deploy.flower.machine import left_over, listening
from fedmime.data import partition
from fedmime.deploy.flower import keeper, operate
from fedmime.deploy.flower.worker import Order
from fedmime.deploy.secure.options import SecureSum, fields_of
from fedmime.experiments import tasks
from fedmime.experiments.setting import Setting, plain

TASK = "digits-two-labels"
HERE = str(Path(__file__).parent)


class Fault(NamedTuple):
    """What a node does wrong, see `faulty.py`."""

    what: str
    at: int
    """After how many requests."""
    once: bool


@contextlib.contextmanager
def deployed(
    tmp_path: Path, faults: Mapping[int, Fault] | None = None, nodes: int = 3, insists: SecureSum | None = None
) -> Iterator[operate.Running]:
    """A SuperLink with nodes, some of which are faulty. What nodes are sent and answer is in `NAME.trace`.

    Args:
        tmp_path: where everything is written.
        faults: by the number of the node.
        nodes: how many there are.
        insists: the masks that nodes insist on.
    """
    population = partition.regroup(tasks.get(TASK).clients(), nodes)

    def orders(directory: Path) -> dict[str, Order]:
        found = {}
        for number, name in enumerate(population.ids):
            store = directory / f"{name}.store"
            fm.data.from_arrays({name: population.client(name)}).save(store)
            given: dict[str, Any] = {"task": TASK, "store": str(store), "name": name}
            given |= {"state": str(tmp_path / "nodes" / name), "secure": fields_of(insists)}
            fault, at, once = (faults or {}).get(number, (None, 0, False))
            given |= {"fault": fault, "at": at, "once": str(tmp_path / f"{name}.done") if once else None}
            found[name] = Order("faulty:of_task", given | {"trace": str(tmp_path / f"{name}.trace")}, (HERE,))
        return found

    with operate.local(tmp_path / "logs", orders, 1 << 20) as running:
        yield running
    assert left_over(tmp_path) == []
    assert listening(tmp_path / "logs") == set()


def learn(
    running: operate.Running,
    out: Path,
    rounds: int,
    deadline: float = 60.0,
    on_event: Callable[[Any], None] = lambda _: None,
    nodes: int = 3,
    joining: float = 120.0,
    secure: SecureSum | None = None,
    **setting: Any,
) -> dict[str, np.ndarray]:
    """Run to the end; gives the history."""
    owners = running.launcher.directory / "owners.json"
    running.admission.control.tell_owners(owners)
    asked = Setting(task=TASK, rounds=rounds, **({"algorithm": "fedavg", "cohort": nodes} | setting))
    plan = {
        "call": "fedmime.deploy.flower.server_app:of_setting",
        "most": 1 << 20,
        "arguments": {
            "setting": plain(asked),
            "run_dir": str(out),
            "data_dir": None,
            "saving": {"every": 1},
            "waiting": {"nodes": nodes, "joining": joining, "deadline": deadline},
            "command": ["fedmime", "deploy"],
            "secure": fields_of(secure),
            "owners": str(owners),
        },
    }
    operate.follow(running, plan, on_event, lambda: None)
    return fm.Run.load(out).history


def equal(one: Path, other: Path) -> float:
    """The largest difference of two runs' models, which must not be large."""
    pairs = zip(*(jax.tree.leaves(fm.Run.load(path).params) for path in (one, other)), strict=True)
    gap = max(float(np.abs(a - b).max()) for a, b in pairs)
    assert gap <= 1e-5
    return gap


def process_of(running: operate.Running, word: str) -> int:
    """The process of this deployment with a word in its command."""
    assert running.launcher._keeper.pid is not None
    for found in keeper._descendants(running.launcher._keeper.pid):
        with contextlib.suppress(OSError):
            if word in Path(f"/proc/{found}/cmdline").read_text():
                return found
    raise AssertionError(f"no process runs {word}")
