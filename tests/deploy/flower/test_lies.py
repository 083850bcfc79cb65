"""A node with a valid key that lies in every round: each lie is refused with its reason, and changes no model.

One deployment hears all lies, one in each round, between two nodes that are honest.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deploy.flower.lying import FRAMES, OTHERS
from deploy.flower.machine import as_users_run_it, memory, simulated
from deploy.flower.running import Fault, deployed, equal, learn, process_of

pytest.importorskip("flwr")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning"),  # of flwr
]

NODES = 3
REASONS = {lie: reason for lie, (_, reason) in FRAMES.items()} | OTHERS
LIES = ["garbage", *(lie for lie in REASONS if lie != "bomb"), "bomb", "garbage"]


def test_no_lie_is_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is that of a simulation without the liar."""
    as_users_run_it(monkeypatch, tmp_path)
    out, occupied = tmp_path / "run", []

    def on_event(event: Any) -> None:
        if event["round"] in (1, len(LIES) - 2):
            occupied.append(memory(process_of(running, "flwr-serverapp")))

    with deployed(tmp_path, {NODES - 1: Fault("lie " + json.dumps(LIES), 0, False)}) as running:
        history = learn(running, out, len(LIES), deadline=60.0, on_event=on_event)
    refused = {
        number: {name.removeprefix("refused_") for name in history if "refused_" in name and history[name][number] > 0}
        for number in range(len(LIES))
    }
    for number, lie in enumerate(LIES[:-1]):
        expected = {REASONS[lie]} | ({"late"} if lie == "replayed" else set())  # its sound reply never comes
        assert refused[number] == expected, lie
    assert refused[len(LIES) - 1] in ({"structure"}, {"late"})  # one that has failed introduces itself again
    assert (history["refused"] == 1).all()
    assert not history["abandoned"].any()
    assert not (tmp_path / "canary").exists()
    before, after = occupied
    assert after - before < 200e6
    equal(out, simulated(out, NODES, len(LIES), honest=NODES - 1))


def test_the_canary_would_sing(tmp_path: Path) -> None:
    """Whoever unpickles such a reply runs what is in it."""
    import pickle

    from deploy.flower.lying import _Canary

    pickle.loads(pickle.dumps(_Canary(tmp_path / "canary")))
    assert (tmp_path / "canary").exists()
