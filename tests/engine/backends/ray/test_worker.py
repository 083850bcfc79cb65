"""The worker's half in this process, without Ray: parts of a round, answered one by one, add up to the round."""

from __future__ import annotations

import dataclasses
import socket
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import fedmime as fm
from engine.setting import KINDS, PROBLEM, close, model, population, same
from fedmime.engine.backends.backend import Answer
from fedmime.engine.backends.local.backend import LocalBackend
from fedmime.engine.backends.ray import worker
from fedmime.engine.backends.ray.parts import Parcel, Part, added, plain, split
from fedmime.engine.backends.ray.worker import Ask, MemoryFile, SlotMemory, Slots, Task

CLIENTS = population((5, 9, 14, 3, 7, 8, 2, 11))


@pytest.fixture(autouse=True)
def _no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_got", lambda ref: ref[0])


def _task(memory: MemoryFile | None = None) -> Task:
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), model())
    return Task([PROBLEM], "problem", shapes, [CLIENTS], [], [], memory, False, True, 0, None)


def _parcel(tree: Any) -> Parcel:
    leaves, structure = jax.tree.flatten(plain(tree))
    return Parcel(jax.tree.unflatten(structure, range(len(leaves))), (leaves,))


@dataclasses.dataclass
class InParts:
    """A back end that answers for parts with the worker's half, and keeps what it was asked."""

    parts: int
    asked: list[tuple[Part, Ask]] = dataclasses.field(default_factory=list)

    def start(self, problem: Any, shapes: Any, needs: Any) -> Any:
        run, outer = worker._Run(_task(), problem, CLIENTS), self

        class Backend(LocalBackend):
            before: Any = None

            def prepare(self, work: Any) -> None:
                pass

            def ask(self, work: Any, points: Any = (), message: Any = None, bound: Any = np.inf) -> Answer:
                sent, self.new, answers = None if message is None else _parcel(message), {}, []
                at = _parcel(points) if points else None
                for number, part in split(work, outer.parts, CLIENTS).items():
                    kept = None if self.memory is None or sent is None else self.memory.read(part.training)
                    before = None if points else self.before
                    ask = Ask(plain(work.aggregator), plain(bound), at, sent, before, kept, work.algorithm)
                    outer.asked.append((part, ask))
                    answers.append(run.ask(number, work.round, [part], ask))
                    self.new |= answers[-1].new
                self.before = at
                return added(answers, work.cohort)

            def settle(self, work: Any, accepted: bool) -> None:
                if self.memory is not None and accepted:
                    self.memory = self.memory.write(list(self.new), list(self.new.values()))

        return Backend(problem, shapes, None, needs.intake, needs.drift)


def _run(kind: str, backend: Any) -> Any:
    return fm.simulate(KINDS[kind], PROBLEM, CLIENTS, 3, 6, 4, seed=1, evaluate_every=3, backend=backend)


@pytest.mark.parametrize(
    ("kind", "parts"), [("mime-adam", 3), ("mime_lite-split", 3), ("mime_mvr", 3), ("scaffold", 3), ("scaffold", 1)]
)
def test_parts_add_up_to_the_round(kind: str, parts: int) -> None:
    ours, theirs = _run(kind, InParts(parts)), _run(kind, "local")
    close(ours.state.server, theirs.state.server)
    if ours.state.memory is not None:
        close(ours.state.memory.read(range(8)), theirs.state.memory.read(range(8)))


@pytest.mark.parametrize("kind", ["mime-adam", "scaffold"])
def test_another_worker_gives_the_same_bits(kind: str) -> None:
    """It has not done phase 1, and does it first."""
    backend = InParts(2)
    _run(kind, backend)
    part, ask = backend.asked[-1]
    assert ask.message is not None
    assert (ask.before is not None) == (kind == "mime-adam")
    answers = [worker._Run(_task(), PROBLEM, CLIENTS).ask(part.number, 9, [part], ask) for _ in range(2)]
    told = [(each.totals, each.new, each.refused) for each in answers]
    assert same(*told)
    assert answers[0].seconds > 0


@pytest.mark.parametrize("durable", [False, True])
def test_clients_keep_values_in_the_runs_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool) -> None:
    blank, synced = {"c": np.zeros(3)}, []
    monkeypatch.setattr("os.fsync", synced.append)
    host = "elsewhere" if durable else socket.gethostname()
    disk = fm.DiskMemory(blank, tmp_path / "kept").write([4], [{"c": np.ones(3)}])
    memory = SlotMemory(MemoryFile(str(disk.path), "", host, blank), Slots(disk.slots([4, 5]), {4: 7, 5: 8}))
    assert [value["c"][0] for value in memory.read([5, 4])] == [0.0, 1.0]
    memory.write([5], [{"c": np.full(3, 2.0)}])
    assert memory.new == {5: 8}
    assert bool(synced) == durable
    disk.adopt(memory.new)
    assert [value["c"][0] for value in disk.read([4, 5])] == [1.0, 2.0]
