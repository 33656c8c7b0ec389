"""Listing and clearing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from hicache_core.errors import StorageError
from hicache_s3.client import Entry
from hicache_s3.failures import is_missing, short
from hicache_s3.names import CONTROL, key_of
from hicache_s3.opening import Store
from hicache_s3.sweep import once

_SECONDS_PER_STEP = 60.0


class Directory:
    """The listing of one open store. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def scan(self, namespace: str | None, cursor: str | None) -> tuple[list[tuple[str, int, float]], str | None]:
        """Pages in the order of their objects' names; the cursor is the last name seen. Raises StorageError."""
        entries, more = self._entries(namespace, cursor)
        start = len(self._store.prefix)
        keys = ((key_of(entry.path[start:]), entry) for entry in entries)
        found = [(key, entry.nbytes, entry.mtime) for key, entry in keys if key is not None]
        return found, entries[-1].path[start:] if more and entries else None

    def clear(self, namespace: str) -> int:
        """Remove every page of the namespace and nothing else. Raises StorageError."""
        start, removed = len(self._store.prefix), 0
        after: str | None = None
        while True:
            entries, more = self._entries(namespace, after)
            paths = [entry.path for entry in entries if key_of(entry.path[start:]) is not None]
            self._one("clear", lambda paths=paths: self._store.client.remove_all(paths))  # type: ignore[misc]
            removed += len(paths)
            if not more or not entries:
                return removed
            after = entries[-1].path[start:]

    def _entries(self, namespace: str | None, after: str | None) -> tuple[list[Entry], bool]:
        prefix, client = self._store.prefix, self._store.client
        directory = f"{prefix}{namespace or ''}".rstrip("/")
        place = None if after is None else f"{prefix}{after}"
        try:
            found: tuple[list[Entry], bool] = self._one("listing", lambda: client.entries(directory, place))
        except StorageError as error:
            if error.__cause__ is not None and is_missing(error.__cause__):
                return [], False
            raise
        control = f"{prefix}{CONTROL}/"
        return [entry for entry in found[0] if not entry.path.startswith(control)], found[1]

    def _one(self, what: str, request: Callable[[], Any]) -> Any:
        try:
            return once(self._store.threads.ask, request, time.monotonic() + _SECONDS_PER_STEP)
        except Exception as error:
            text = self._store.hide(short(error))
            self._store.counters.failed(text)
            raise StorageError(f"{what} failed: {text}") from error
