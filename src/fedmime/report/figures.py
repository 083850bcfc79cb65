"""Which figures a report of runs has: those whose numbers were measured."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedmime.report.bars import client_accuracies, rounds_to_target
from fedmime.report.curves import against_bytes, against_rounds
from fedmime.report.headline import ACCURACY, headline
from fedmime.report.picture import Picture, save
from fedmime.report.recorded import Recorded

__all__ = ["Picture", "save", "standard"]
_DIAGNOSTICS = (
    ("drift", "Client drift", "Mean squared distance of client models from the server's, over all local steps."),
    ("gradient_norm", "Norm of the gradient, ‖c‖", "c is the cohort's mean gradient at the server model."),
    ("deviation", "Deviation, ‖eₜ‖", "How far the round's update is from that of the central optimizer."),
    ("update_norm", "Norm of the server's update", "Distance between the server models before and after a round."),
)


def standard(runs: Sequence[Recorded], target: float | None) -> list[Picture]:
    """The figures of a report, in the order in which they are read."""
    loss, kind = ("test_loss", "Test") if _measured(runs, "test_loss") else ("loss", "Training")
    pictures = []
    for name, stem, what, aim in (
        (ACCURACY, "accuracy", "Test accuracy", target),
        (loss, "loss", f"{kind} loss", None),
    ):
        if _measured(runs, name):
            title = f"{what} by rounds"
            pictures.append(Picture(f"{stem}-rounds", title, against_rounds(runs, name, title, aim)))
        if _measured(_measured(runs, name), "bytes_total"):
            title = f"{what} by bytes sent"
            pictures.append(Picture(f"{stem}-bytes", title, against_bytes(runs, name, title, aim)))
    tested = _measured(runs, ACCURACY)
    if len(tested) > 1 and target is not None:
        title = "Rounds to the target accuracy"
        rows = [headline(run, target) for run in tested]
        pictures.append(Picture("rounds-to-target", title, rounds_to_target(rows, target, title)))
    if known := [run for run in runs if np.isfinite(np.asarray(run.clients.get("accuracy", []), float)).any()]:
        title = "Accuracy over clients"
        told = "How many clients have which accuracy; full colour: the worst tenth; line: the mean."
        pictures.append(Picture("client-accuracy", title, client_accuracies(known, title), told))
    return pictures


def diagnostics(runs: Sequence[Recorded]) -> list[Picture]:
    """What happened inside the rounds."""
    pictures = []
    for name, title, caption in _DIAGNOSTICS:
        if _measured(runs, name):
            stem = name.replace("_", "-")
            pictures.append(Picture(stem, title, against_rounds(runs, name, title), caption))
    return pictures


def _measured(runs: Sequence[Recorded], name: str) -> list[Recorded]:
    return [run for run in runs if len(run.series(name)[1])]
