"""Where a run speaks: warnings go to the console and to the run's log, notes to its log alone."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

warnings = logging.getLogger("fedmime")
notes = logging.getLogger("fedmime.run")
notes.propagate = False  # a console that the caller has set up for logging is not the place for them


class _LogFile(logging.FileHandler):
    """Writes to a file, and takes nothing from the console: Python shows warnings there unless they have a handler."""

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        others = [handler for handler in warnings.handlers if not isinstance(handler, _LogFile)]
        if not others and not logging.root.handlers and record.levelno >= logging.WARNING and logging.lastResort:
            logging.lastResort.handle(record)


@contextlib.contextmanager
def written_to(path: Path) -> Iterator[None]:
    """Write warnings and notes to a file, too."""
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
