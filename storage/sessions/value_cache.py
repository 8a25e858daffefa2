"""A bounded cache of computed values in a SQLite file of its own, beside the index.

A cache that cannot be read or written never fails a request: the value is then computed again. A damaged file
is deleted and begun anew.
"""

import logging
import sqlite3
import time
from contextlib import closing
from pathlib import Path

log = logging.getLogger(__name__)

FILE_NAME = "values.db"
MAX_BYTES = 256 << 20
#: puts between two checks of the size
_PUTS_PER_CHECK = 64
_BUSY_SECONDS = 1.0
#: primary codes of SQLite for a damaged file, and for a file of another format
_DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_TABLE = "CREATE TABLE IF NOT EXISTS kept (key TEXT PRIMARY KEY, made REAL, bytes INTEGER, data BLOB)"


class ValueCache:
    """Bytes by key. Safe for use from many threads and processes."""

    def __init__(self, folder: Path, max_bytes: int = MAX_BYTES) -> None:
        """`max_bytes`: stored bytes after a check; the oldest values are removed."""
        self._path = folder / FILE_NAME
        self._max_bytes = max_bytes
        self._puts = 0

    def get(self, key: str) -> bytes | None:
        """The bytes of a key; None if there are none."""
        if not self._path.exists():
            return None
        try:
            with closing(self._open()) as connection:
                row = connection.execute("SELECT data FROM kept WHERE key = ?", (key,)).fetchone()
        except sqlite3.Error as error:
            self._note("read", error)
            return None
        return None if row is None else bytes(row[0])

    def put(self, key: str, data: bytes) -> None:
        try:
            with closing(self._open()) as connection, connection:
                connection.execute(_TABLE)
                connection.execute(
                    "INSERT OR REPLACE INTO kept VALUES (?, ?, ?, ?)", (key, time.time(), len(data), data)
                )
                if self._puts % _PUTS_PER_CHECK == 0:
                    self._shrink(connection)
                self._puts += 1
        except sqlite3.Error as error:
            self._note("written", error)

    def _note(self, act: str, error: sqlite3.Error) -> None:
        """Delete the file if it is damaged."""
        if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _DAMAGE:
            log.debug("the cache of values cannot be %s: %s", act, error)
            return
        log.warning("the cache of values in %s is damaged and is begun anew: %s", self._path, error)
        for name in (FILE_NAME, f"{FILE_NAME}-journal"):
            self._path.with_name(name).unlink(missing_ok=True)

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=_BUSY_SECONDS)
        # losing the cache with the machine costs nothing
        connection.execute("PRAGMA synchronous=OFF")
        return connection

    def _shrink(self, connection: sqlite3.Connection) -> None:
        """Remove the oldest values until the others fit."""
        total = connection.execute("SELECT coalesce(sum(bytes), 0) FROM kept").fetchone()[0]
        if total <= self._max_bytes:
            return
        for key, size in connection.execute("SELECT key, bytes FROM kept ORDER BY made, key").fetchall():
            if total <= self._max_bytes:
                break
            connection.execute("DELETE FROM kept WHERE key = ?", (key,))
            total -= size
