"""The headline of a report: what each run reached, what it cost, and what went wrong."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from fedmime.report.recorded import Recorded, finite, rounds_to_target
from fedmime.report.words import NOTHING, duration, figure, megabytes, percent, whole

ACCURACY = "test_accuracy"


@dataclasses.dataclass(frozen=True)
class Headline:
    """One run in a row of numbers; None where it was not measured or not reached."""

    label: str
    state: str
    rounds: int
    final_accuracy: float | None
    best_accuracy: float | None
    rounds_to_target: int | None
    megabytes: float | None
    megabytes_to_target: float | None
    seconds: float | None
    worst_decile: float | None
    epsilon: float | None = None
    final_loss: float | None = None
    best_loss: float | None = None


COLUMNS = (  # heading, field, how it is written, which is best
    ("Final accuracy", "final_accuracy", percent, max),
    ("Best accuracy", "best_accuracy", percent, max),
    ("Final test loss", "final_loss", figure, min),
    ("Best test loss", "best_loss", figure, min),
    ("Rounds to target", "rounds_to_target", whole, min),
    ("MB sent", "megabytes", lambda value: megabytes(None if value is None else value * 1e6), min),
    ("MB to target", "megabytes_to_target", lambda value: megabytes(None if value is None else value * 1e6), min),
    ("Time", "seconds", duration, min),
    ("Worst tenth of clients", "worst_decile", percent, max),
    ("Privacy ε", "epsilon", lambda value: NOTHING if value is None else f"{value:.2f}", min),
)
_ACCURACIES, _LOSSES = ("final_accuracy", "best_accuracy"), ("final_loss", "best_loss")
_SOMETIMES = ("worst_decile", "epsilon")  # shown only where they were measured
Column = tuple[str, str, Callable[[float | None], str], Callable[..., float]]


def headline(run: Recorded, target: float | None) -> Headline:
    """The figures of one run."""
    accuracy, loss = run.series(ACCURACY)[1], run.series("test_loss")[1]
    reached = rounds_to_target(run.history, target) if target is not None and len(accuracy) else None
    sent = run.last("bytes_total")
    return Headline(
        run.label,
        str(run.status.get("state", "unknown")),
        len(run.history.get("round", ())),
        float(accuracy[-1]) if len(accuracy) else None,
        float(accuracy.max()) if len(accuracy) else None,
        reached,
        None if sent is None else sent / 1e6,
        megabytes_after(run, reached),
        _seconds(run),
        run.last("client_accuracy_worst_decile"),
        run.last("epsilon"),
        float(loss[-1]) if len(loss) else None,
        float(loss.min()) if len(loss) else None,
    )


def megabytes_after(run: Recorded, rounds: int | None) -> float | None:
    """What had been sent after so many rounds."""
    if rounds is None or "bytes_total" not in run.history:
        return None
    found = run.history["bytes_total"][run.history["round"] == rounds - 1]
    return float(found[0]) / 1e6 if len(found) and np.isfinite(found[0]) else None


def _seconds(run: Recorded) -> float | None:
    known = run.seconds[np.isfinite(run.seconds)]
    if len(known):
        return float(known[-1])
    return finite(run.status.get("seconds"))


def common_target(runs: Sequence[Recorded]) -> float | None:
    """The accuracy to reach: what the runs were asked, else the highest whole per cent that every run reached."""
    told = {value for run in runs if (value := finite(run.config.get("target"))) is not None}
    if len(told) == 1:
        return told.pop()
    best = [accuracy.max() for run in runs if len(accuracy := run.series(ACCURACY)[1])]
    whole_percent = math.floor(100 * min(best) + 1e-9) / 100 if best else 0.0
    return whole_percent if whole_percent > 0 else None


def columns(rows: Sequence[Headline]) -> list[Column]:
    """The columns to show: those of single clients and of privacy only where they were measured.

    Losses are shown in the place of accuracies where no run has these.
    """
    missing = [name for name in _SOMETIMES if all(getattr(row, name) is None for row in rows)]
    lossy = all(row.final_accuracy is None for row in rows) and any(row.final_loss is not None for row in rows)
    missing += _ACCURACIES if lossy else _LOSSES
    return [column for column in COLUMNS if column[1] not in missing]


def cells(rows: Sequence[Headline], target: float | None, compared: bool = True) -> list[list[tuple[str, bool]]]:
    """The table's text, and whether it is the best of its column; none is where figures cannot be compared."""
    told = []
    for _, field, write, best in columns(rows):
        known = [write(value) for row in rows if (value := getattr(row, field)) is not None]
        values = [value for row in rows if (value := getattr(row, field)) is not None]
        winner = write(best(values)) if compared and len(set(known)) > 1 else None
        texts = [write(getattr(row, field)) for row in rows]
        if field == "rounds_to_target" and target is not None:
            texts = [
                f"not in {row.rounds:,}" if text == NOTHING and row.final_accuracy is not None else text
                for row, text in zip(rows, texts, strict=True)
            ]
        told.append([(text, text == winner) for text in texts])
    return [list(row) for row in zip(*told, strict=True)]


def _total(run: Recorded, name: str) -> int:
    return int(np.nansum(run.history.get(name, np.zeros(0))))


def problems(run: Recorded) -> list[str]:
    """What a reader must know before trusting the figures, one sentence each."""
    found = []
    state, reason = run.status.get("state"), run.status.get("reason")
    done, wanted = len(run.history.get("round", ())), run.status.get("rounds")
    because = f": {reason}" if reason else ""
    if state not in (None, "done"):
        verb = {"running": "has not ended yet", "failed": "failed", "preempted": "was stopped"}
        of = f" of {wanted:,}" if isinstance(wanted, int) else ""
        found.append(f"The run {verb.get(str(state), f'is in state {state!r}')} after {done:,}{of} rounds{because}.")
    if not done:
        found.append("No round was recorded.")
    if lost := _total(run, "abandoned"):
        why = "no client came, or the update was not finite or exploded"
        found.append(f"{lost:,} of {done:,} rounds {'was' if lost == 1 else 'were'} abandoned: {why}.")
    if refused := _total(run, "refused"):
        told = "client was" if refused == 1 else "clients were"
        why = "data that the model cannot take, or a reply that is not finite or exploded"
        codes = {name.removeprefix("refused_"): _total(run, name) for name in run.history if "refused_" in name}
        each = ", ".join(f"{name.replace('_', ' ')} {number:,}" for name, number in codes.items())
        by = f" (by reason: {each})" if each else ""
        found.append(f"{refused:,} {told} left out of a round: {why}{by}. The run's log.txt names them.")
    losses = run.history.get("loss", np.zeros(0))
    if done and len(losses) and not np.isfinite(losses[-1]):
        found.append("The last round's training loss is not a finite number.")
    return found
