"""A whole storage backend: pages as rows of one SQLite file. Used by docs/guides/write-a-backend.md.

hicache conformance dynamic -o module=sqlite_backend -o class_name=SqliteBackend -o path=/tmp/pages.db
"""

from __future__ import annotations

import sqlite3
import threading
import time

import msgspec

from hicache_core.types import KEY_PATTERN, Capabilities, Outcome


class Options(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a user may set; a typo is answered with the nearest name."""

    path: str


class SqliteBackend:
    """Required hooks, and three optional ones. SQLite gives atomic publication and survives kill -9."""

    options = Options
    capabilities = Capabilities(
        durable=True, shared=True, replace=True, delete="immediate", scan=True, reports_exists=True, clean_miss=True
    )

    def __init__(self, options, ctx):
        self.path = options.path
        self.lock = threading.Lock()  # calls come from several threads; one connection serves them in turn
        self.db = sqlite3.connect(options.path, isolation_level=None, check_same_thread=False, timeout=30)
        self.db.execute("PRAGMA journal_mode=WAL")
        self.db.execute("CREATE TABLE IF NOT EXISTS page (key TEXT PRIMARY KEY, at REAL, bytes BLOB) WITHOUT ROWID")

    def batch_exists(self, keys):
        for count, key in enumerate(keys):
            if not self._find("1", key):
                return count
        return len(keys)

    def batch_get(self, keys, pages):
        return [self._get(key, page) for key, page in zip(keys, pages, strict=True)]

    def _get(self, key, page):
        rows = self._find("bytes", key)
        if not rows:
            return Outcome.MISS
        stored, start = memoryview(rows[0][0]), 0
        if len(stored) != sum(buffer.nbytes for buffer in page):
            return Outcome.CORRUPT  # any other length is damage, never a hit
        for buffer in page:
            buffer[:] = stored[start : start + buffer.nbytes]
            start += buffer.nbytes
        return Outcome.HIT

    def batch_set(self, keys, pages, ctx):
        verb = "INSERT OR REPLACE" if ctx.replace else "INSERT OR IGNORE"
        return [self._set(verb, key, b"".join(page)) for key, page in zip(keys, pages, strict=True)]

    def _set(self, verb, key, data):
        if not KEY_PATTERN.fullmatch(key):
            return Outcome.REJECTED
        stored = self._execute(f"{verb} INTO page VALUES (?, ?, ?)", key, time.time(), data)
        return Outcome.STORED if stored else Outcome.EXISTS

    def delete(self, keys):
        return [self._delete(key) for key in keys]

    def _delete(self, key):
        found = self._find("1", key) and self._execute("DELETE FROM page WHERE key = ?", key)
        return Outcome.HIT if found else Outcome.MISS

    def clear(self, namespace):
        if not KEY_PATTERN.fullmatch(namespace) or "/" in namespace:
            return 0
        return self._execute("DELETE FROM page WHERE key >= ? AND key < ?", f"{namespace}/", f"{namespace}0")

    def scan(self, namespace, cursor):
        if namespace is not None and (not KEY_PATTERN.fullmatch(namespace) or "/" in namespace):
            return [], None
        low, high = ("", "~") if namespace is None else (f"{namespace}/", f"{namespace}0")
        query = (
            "SELECT key, length(bytes), at FROM page WHERE key > ? AND key >= ? AND key < ? ORDER BY key LIMIT 1000"
        )
        rows = self._query(query, cursor or "", low, high)
        return rows, rows[-1][0] if len(rows) == 1000 else None

    def close(self):
        with self.lock:
            self.db.close()

    def conformance_back_door(self):
        """For the suite only: a second way into the store, so that a backend cannot hide its own mistakes."""
        return SqliteBackDoor(self.path)

    def _find(self, column, key):
        return KEY_PATTERN.fullmatch(key) and self._query(f"SELECT {column} FROM page WHERE key = ?", key)

    def _query(self, statement, *values):
        with self.lock:
            return self.db.execute(statement, values).fetchall()

    def _execute(self, statement, *values):
        with self.lock:
            return self.db.execute(statement, values).rowcount


class SqliteBackDoor:
    """The rows, by a connection of its own."""

    root = None  # no file per page

    def __init__(self, path):
        self.path = path

    def raw_get(self, key):
        rows, _ = self._run("SELECT bytes FROM page WHERE key = ?", key)
        return bytes(rows[0][0]) if rows else None

    def raw_set(self, key, data):
        self._run("INSERT OR REPLACE INTO page VALUES (?, ?, ?)", key, time.time(), data)

    def raw_delete(self, key):
        _, count = self._run("DELETE FROM page WHERE key = ?", key)
        return count > 0

    def raw_list(self):
        rows, _ = self._run("SELECT key FROM page")
        return [key for (key,) in rows]

    def _run(self, statement, *values):
        db = sqlite3.connect(self.path, isolation_level=None, timeout=30)
        try:
            cursor = db.execute(statement, values)
            return cursor.fetchall(), cursor.rowcount
        finally:
            db.close()
