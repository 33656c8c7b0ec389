"""SQLite connections of one index: some to read with, one to write with, and the errors in words.

WAL: readers see a snapshot and never wait for the writer; a commit that kill -9 cuts short is not there. With
synchronous=NORMAL a power cut may take the newest commits back, never damage the rest; FULL keeps them, at one flush
a commit.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from hicache_hf3fs.errors import IndexFailure, IndexFull, IndexTimeout

_PATIENCE_SECONDS = 5.0
_CHECKPOINT_PAGES = 4096
"""WAL pages (4 KiB) after which SQLite moves them into the database, with two flushes: rare, and a WAL of 16 MiB."""
_left_to_parent: list[sqlite3.Connection] = []
"""Connections that a forked child inherited: SQLite forbids to use them there, and closing is a use."""


class Connections:
    """Connections to one database file. Thread-safe."""

    def __init__(self, path: str, *, durable: bool) -> None:
        self._path, self._durable = path, durable
        self._free: list[sqlite3.Connection] = []
        self._all: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._writer = self._connect()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection for queries. Raises IndexFailure."""
        with _told():
            with self._lock:
                connection = self._free.pop() if self._free else None
            if connection is None:
                connection = self._connect()
            try:
                yield connection
            finally:
                self._free.append(connection)

    @contextmanager
    def writing(self, deadline: float | None) -> Iterator[sqlite3.Connection]:
        """The one connection that writes, inside a transaction that is committed at the end. Raises IndexFailure."""
        patience = _PATIENCE_SECONDS if deadline is None else deadline - time.monotonic()
        if not self._turn.acquire(timeout=max(0.0, min(patience, _PATIENCE_SECONDS))):
            raise IndexTimeout("another thread holds the index; it did not go on in time")
        try:
            with _told():
                connection = self._writer
                connection.execute("BEGIN IMMEDIATE")
                try:
                    yield connection
                    connection.execute("COMMIT")
                except BaseException:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                    raise
        finally:
            self._turn.release()

    def close(self, *, ours: bool) -> None:
        """Close all; in a forked child keep them, unused, until it ends."""
        if not ours:
            self._lock = threading.Lock()  # another thread of the parent may have held the old one
        with self._lock:
            connections, self._all, self._free = self._all, [], []
        if not ours:
            _left_to_parent.extend(connections)
            return
        for connection in connections:
            connection.close()

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path,
            timeout=_PATIENCE_SECONDS,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=512,
        )
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute(f"PRAGMA synchronous={'FULL' if self._durable else 'NORMAL'}")
            connection.execute(f"PRAGMA wal_autocheckpoint={_CHECKPOINT_PAGES}")
        except BaseException:
            connection.close()
            raise
        with self._lock:
            self._all.append(connection)
        return connection


@contextmanager
def _told() -> Iterator[None]:
    """SQLite's errors as ours."""
    try:
        yield
    except sqlite3.Error as error:
        text = str(error)
        if "locked" in text or "busy" in text:
            raise IndexTimeout(f"another process holds the index and does not go on ({text})") from error
        if "full" in text:
            raise IndexFull(f"there is no room for the index ({text}); free some, or lower max_size") from error
        raise IndexFailure(f"the index cannot be used ({text})") from error
