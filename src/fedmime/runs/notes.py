"""The loggers of a run: warnings go to the console and to the run's log file, notes to the log file alone.

A library should not print. `warnings` is an ordinary logger that applications can configure; `notes` records events
that only matter to somebody who studies a run afterwards, such as which clients a round left out.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

warnings = logging.getLogger("fedmime")
notes = logging.getLogger("fedmime.run")
notes.propagate = False  # otherwise a caller who configures logging would see them on the console


class _LogFile(logging.FileHandler):
    """A handler that writes to a file without silencing the console.

    Python prints warnings to the console only as long as a logger has no handler. This handler passes warnings on to
    the console if no other handler would show them.
    """

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        others = [handler for handler in warnings.handlers if not isinstance(handler, _LogFile)]
        if not others and not logging.root.handlers and record.levelno >= logging.WARNING and logging.lastResort:
            logging.lastResort.handle(record)


@contextlib.contextmanager
def written_to(path: Path) -> Iterator[None]:
    """Write warnings and notes to a file while the context lasts."""
    file, level = _LogFile(path, encoding="utf-8"), notes.level
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    notes.setLevel(logging.INFO)
    for logger in (warnings, notes):
        logger.addHandler(file)
    try:
        yield
    finally:
        for logger in (warnings, notes):
            logger.removeHandler(file)
        notes.setLevel(level)
        file.close()
