"""Terms: the digest covers everything that decides what a client computes, and nothing that is the server's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import fedmime as fm
from engine.backends.ray.losses import NOISY
from engine.setting import KINDS, PROBLEM, a, falling, model, o
from fedmime.deploy.messages import Hello
from fedmime.deploy.terms import built, public, schedule_of, terms_of
from fedmime.deploy.terms import ours as names_of
from fedmime.experiments import messages, recipes, tasks
from fedmime.experiments.setting import Messages, Optimizer, Server, Setting, plain

g = fm.aggregation


FEDAVG = a.fedavg(0.1)


def _configuration(algorithm: Any = FEDAVG, aggregation: Any = None, problem: Any = PROBLEM, start: Any = None):
    return terms_of(algorithm, aggregation, problem, start).configuration


def test_what_clients_do_changes_the_digest() -> None:
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), model())
    wider = {**model(), "more": jnp.zeros(2)}
    found = [
        _configuration(),
        _configuration(a.fedavg(0.2)),
        _configuration(a.fedavg(falling(0.1))),
        _configuration(a.fedavg(falling(0.2))),
        _configuration(a.fedprox(0.1, 0.1)),
        _configuration(a.mime(o.momentum(), 0.1)),
        _configuration(a.mime_lite(o.momentum(), 0.1)),
        _configuration(aggregation=g.clip(1.0)),
        _configuration(aggregation=g.clip(2.0)),
        _configuration(aggregation=g.quantize(8)),
        _configuration(aggregation=g.chain(down=g.quantize(8))),
        _configuration(aggregation=g.top_k(0.1)),
        _configuration(aggregation=g.error_feedback(g.top_k(0.1))),
        _configuration(aggregation=g.gaussian(1.0, 1.0, quantile=0.5)),
        _configuration(start=half),
        _configuration(start=wider),
    ]
    assert len(set(found)) == len(found)


def test_what_the_server_does_does_not() -> None:
    assert _configuration(aggregation=g.median()) == _configuration()
    assert _configuration(aggregation=g.gaussian(1.0, 0.5)) == _configuration(aggregation=g.gaussian(1.0, 2.0))
    assert _configuration(aggregation=g.gaussian(1.0, 0.5)) == _configuration(aggregation=g.clip(1.0))
    assert _configuration(start=model(1)) == _configuration(start=model(2))
    assert terms_of(KINDS["fedavg"], None, NOISY).parameters == terms_of(KINDS["mime-adam"], None, PROBLEM).parameters


@pytest.mark.parametrize("algorithm", ["mime", "fedavg", "scaffold", "mime_mvr", "fedprox"])
def test_a_setting_that_has_travelled_builds_the_same(algorithm: Any) -> None:
    task = tasks.get("digits-logistic")
    setting = recipes.resolved(
        Setting(task.name, algorithm, decay="cosine", aggregation=Messages(quantize=4, clip=2.0)), task
    )
    ours = terms_of(recipes.algorithm(setting), messages.aggregator(setting), task.problem())
    theirs = terms_of(*built(plain(setting)), task.problem())
    assert ours.configuration == theirs.configuration


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": "__class__"},
        {"algorithm": "os.system"},
        {"base": "from_optax"},
        {"eta": "import os"},
        {"eta": -1.0},
        {"module": "os"},
        {"optimizer": {"beta": [1]}},
        {"aggregation": {"quantize": 99}},
        {"aggregation": "pickle"},
    ],
)
def test_a_setting_holds_names_of_this_library_and_numbers(changes: dict[str, Any]) -> None:
    task = tasks.get("digits-logistic")
    setting = plain(recipes.resolved(Setting(task.name), task))
    with pytest.raises(fm.ConfigError):
        built({**setting, **changes})


def test_clients_draw_the_mini_batches_of_the_server() -> None:
    hello = Hello("0" * 32, "0" * 32, "1", 5, 3, 2, None, False, "a" * 64, None)
    ours = schedule_of(hello)
    assert (ours.seed, ours.batch_size, ours.epochs, ours.steps) == (5, 3, 2, None)
    assert ours.lengths(jnp.array([7])).tolist() == [6]


OWN = """
import pathlib
import fedmime as fm

pathlib.Path(__file__).with_suffix(".read").touch()


def swift(eta, base):
    return fm.algorithms.mime_lite(base, eta)


def heavy(beta=0.8):
    return fm.optimizers.momentum(beta)
"""


def test_a_server_never_names_what_a_client_imports(tmp_path: Path) -> None:
    """What the server has of its own comes from the node's operator, or the run is refused before a file is read."""
    theirs, ours = tmp_path / "theirs.py", tmp_path / "ours.py"
    for file in (theirs, ours):
        file.write_text(OWN)
    task = tasks.get("digits-logistic")
    server = Setting(task.name, f"{theirs}:swift", base=f"{theirs}:heavy", optimizer=Optimizer(beta=0.7))
    wanted = recipes.algorithm(recipes.resolved(server, task))
    told = public(recipes.resolved(server, task), task.name)
    assert str(tmp_path) not in str(told)
    theirs.with_suffix(".read").unlink()
    for name in (f"{theirs}:swift", "os:getcwd", "theirs.py:swift"):
        with pytest.raises(fm.ConfigError, match="which no server can have a client import") as caught:
            built(told | {"algorithm": name})
        assert "\n" not in str(caught.value)
    for field in ("base", "server", "client"):
        named = {"base": "os:getcwd"} if field == "base" else {field: {"optimizer": "os:getcwd"}}
        with pytest.raises(fm.ConfigError, match="which no server can have a client import"):
            built(plain(Setting()) | named)
    with pytest.raises(fm.ConfigError, match="the server runs none of its own"):
        built(plain(Setting()), {"algorithm": f"{ours}:swift"})
    assert not [*tmp_path.glob("*.read")]
    found, _ = built(told, {"algorithm": f"{ours}:swift", "base": f"{ours}:heavy"})
    assert found == wanted
    assert [path.name for path in tmp_path.glob("*.read")] == ["ours.read"]
    two = Setting(base=f"{theirs}:heavy", server=Server(f"{ours}:heavy"))
    with pytest.raises(fm.ConfigError, match="a run takes one optimizer of your own"):
        names_of(two)
