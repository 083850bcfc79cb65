"""Open SQLite files that nobody vouches for: read-only, no views or triggers, bounded values."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fedmime.data.limits import DEFAULT, Limits
from fedmime.errors import DataError
from fedmime.files import sha256_of

MAGIC = b"SQLite format 3\0"


class Database:
    """A read-only connection; what SQLite complains of becomes one line with the file's sha256."""

    def __init__(self, path: Path, tables: dict[str, tuple[str, ...]] | None = None, limits: Limits = DEFAULT) -> None:
        self.path = path
        _check_header(path)
        self._lock = threading.Lock()  # rounds are read ahead in a thread of their own
        uri = f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1"
        self._connection = sqlite3.connect(uri, uri=True, check_same_thread=False)
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, min(limits.client_bytes, 2**31 - 1))
        self._connection.execute("PRAGMA trusted_schema = OFF")
        self._connection.execute("PRAGMA cell_size_check = ON")
        self._check(tables or {})

    def rows(self, query: str, values: Iterable[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of a query."""
        try:
            with self._lock:
                return self._connection.execute(query, tuple(values)).fetchall()
        except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
            told = " ".join(str(error).split())[:120]
            raise DataError(
                f"{str(self.path)!r} is not a sound SQLite file (sha256 {sha256_of(self.path)}): {told}"
            ) from None

    def _check(self, tables: dict[str, tuple[str, ...]]) -> None:
        """Raise unless the tables are there, are tables (a view could compute anything) and have the columns."""
        found = {name: (kind, sql or "") for name, kind, sql in self.rows("SELECT name, type, sql FROM sqlite_master")}
        for table, columns in tables.items():
            kind, sql = found.get(table, ("missing", ""))
            if kind != "table" or "virtual" in sql.lower().split("table")[0]:
                names = ", ".join(sorted(found)) or "nothing"
                raise DataError(
                    f"{str(self.path)!r}: table {table!r} is {kind}; found {names}; expected {list(tables)}"
                )
            have = [row[1] for row in self.rows(f"PRAGMA table_info({table})")]
            if not set(columns) <= set(have):
                raise DataError(f"{str(self.path)!r}: table {table!r} has columns {have}; expected {list(columns)}")

    def sound(self) -> list[str]:
        """What SQLite's own check of the whole file finds wrong; nothing, if it is well."""
        return [str(row[0]) for row in self.rows("PRAGMA quick_check(5)") if row[0] != "ok"]

    def indexed(self, table: str, column: str) -> bool:
        """Whether rows can be found by a column without reading the whole table."""
        for index in self.rows(f"PRAGMA index_list({table})"):
            if column in [row[2] for row in self.rows(f'PRAGMA index_info("{index[1]}")')]:
                return True
        return False


def _check_header(path: Path) -> None:
    """Raise unless the file is as long as its header says: SQLite reads missing bytes of a last page as zeros."""
    with path.open("rb") as file:
        header = file.read(100)
    if len(header) < 100 or not header.startswith(MAGIC):
        raise DataError(f"{str(path)!r} is not an SQLite file (sha256 {sha256_of(path)})")
    page_size, counter, pages, valid_for = (
        int.from_bytes(header[at : at + n], "big") for at, n in ((16, 2), (24, 4), (28, 4), (92, 4))
    )
    page_size = 65536 if page_size == 1 else page_size
    size = path.stat().st_size
    if page_size and (size % page_size or (counter == valid_for and pages * page_size != size)):
        told = f"{size} bytes, its header promises {pages} pages of {page_size}"
        raise DataError(f"{str(path)!r} is not a sound SQLite file (sha256 {sha256_of(path)}): {told}")
