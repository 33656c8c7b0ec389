"""The backend `memory`: pages as bytes objects in this process. Fast, honest, and gone with the process."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from hicache_core.errors import StorageError
from hicache_core.plugin.options import ByteSize
from hicache_core.plugin.spec import hookimpl, pagewise
from hicache_core.storage.legality import legal_key, legal_namespace
from hicache_core.storage.staging import copy_bytes
from hicache_core.types import Capabilities, IoContext, OpenContext, Outcome, Page

SCAN_PAGE = 1000

CAPABILITIES = Capabilities(
    replace=True,
    delete="immediate",
    scan=True,
    reports_exists=True,
    clean_miss=True,
    variable_length=True,
    nonblocking=True,
)


class MemoryOptions(msgspec.Struct, kw_only=True, frozen=True):
    """Options of `memory`."""

    max_bytes: Annotated[ByteSize | None, Meta(description="room for pages; a page beyond it is rejected")] = None
    name: Annotated[str, Meta(description="sessions of this process that give one name share one store")] = ""


class MemoryStats(msgspec.Struct):
    """Counters of a `memory` store since it was made."""

    pages: int
    bytes: int
    bytes_read: int
    bytes_written: int


class MemoryStore:
    """The pages, and the room that is left. Shared by the backends that name it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.pages: dict[str, tuple[bytes, float]] = {}
        self.used = self.read = self.written = 0


_named: dict[str, MemoryStore] = {}
_named_lock = threading.Lock()


def forget_store(name: str) -> None:
    """Drop a named store; sessions that hold it keep it until they close."""
    with _named_lock:
        _named.pop(name, None)


def open_memory(options: MemoryOptions, ctx: OpenContext) -> MemoryBackend:
    """The factory."""
    if not options.name:
        return MemoryBackend(MemoryStore(), options.max_bytes)
    with _named_lock:
        store = _named.setdefault(options.name, MemoryStore())
    return MemoryBackend(store, options.max_bytes)


class MemoryBackend:
    """Hooks over a MemoryStore. One lock for writers; readers take none, since a page is never changed in place."""

    def __init__(self, store: MemoryStore, max_bytes: int | None) -> None:
        self._store: MemoryStore | None = store
        self._max_bytes = max_bytes

    @property
    def store(self) -> MemoryStore:
        """The store; raises StorageError after close."""
        if self._store is None:
            raise StorageError("the memory backend is closed")
        return self._store

    @hookimpl
    def batch_exists(self, keys: Sequence[str]) -> int:
        """One dict probe per key."""
        pages = self.store.pages
        for count, key in enumerate(keys):
            if key not in pages:
                return count
        return len(keys)

    @hookimpl
    def batch_contains(self, keys: Sequence[str]) -> list[bool]:
        """One dict probe per key."""
        pages = self.store.pages
        return [key in pages for key in keys]

    @hookimpl
    @pagewise
    def batch_get(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> list[Outcome]:
        """One copy, into the page."""
        store, lengths = self.store, ctx.lengths
        outcomes, read = [], 0
        for i, (key, page) in enumerate(zip(keys, pages, strict=True)):
            found = store.pages.get(key)
            if found is None:
                outcomes.append(Outcome.MISS)
                continue
            stored = found[0]
            if lengths is not None:
                lengths[i] = len(stored)
            if not _scatter(stored, page, exact=lengths is None):
                outcomes.append(Outcome.CORRUPT)
                continue
            read += len(stored)
            ctx.verify_page(i)
            outcomes.append(Outcome.HIT)
        with store.lock:
            store.read += read
        return outcomes

    @hookimpl
    @pagewise
    def batch_set(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> list[Outcome]:
        """One copy, out of the page."""
        return [self._set(key, pages[i], i, ctx) for i, key in enumerate(keys)]

    @hookimpl
    def delete(self, keys: Sequence[str]) -> list[Outcome]:
        """Gone at once."""
        store = self.store
        with store.lock:
            return [Outcome.HIT if _drop(store, key) else Outcome.MISS for key in keys]

    @hookimpl
    def clear(self, namespace: str) -> int:
        """Every key under the namespace; 0 for a name that cannot be one."""
        store = self.store
        if not legal_namespace(namespace):
            return 0
        with store.lock:
            doomed = [key for key in store.pages if key.partition("/")[0] == namespace]
            for key in doomed:
                _drop(store, key)
        return len(doomed)

    @hookimpl
    def scan(self, namespace: str | None, cursor: str | None) -> tuple[list[tuple[str, int, float]], str | None]:
        """By key; the cursor is the last key given."""
        store = self.store
        if namespace is not None and not legal_namespace(namespace):
            return [], None
        with store.lock:
            entries = [(key, len(data), mtime) for key, (data, mtime) in store.pages.items()]
        entries = sorted(
            entry
            for entry in entries
            if namespace in (None, entry[0].partition("/")[0]) and (cursor is None or entry[0] > cursor)
        )
        page = entries[:SCAN_PAGE]
        return page, page[-1][0] if len(entries) > SCAN_PAGE else None

    @hookimpl
    def stats(self) -> MemoryStats:
        """Of the store, so of all that share it."""
        store = self.store
        with store.lock:
            return MemoryStats(len(store.pages), store.used, store.read, store.written)

    @hookimpl
    def close(self) -> None:
        """Let go of the store; a named one stays for the next session."""
        self._store = None

    def _set(self, key: str, page: Page, index: int, ctx: IoContext) -> Outcome:
        store, replace = self.store, ctx.replace
        if not replace and key in store.pages:
            return Outcome.EXISTS
        if not legal_key(key):
            return Outcome.REJECTED
        ctx.seal_page(index)
        data = page[0].tobytes() if len(page) == 1 else b"".join(page)
        with store.lock:
            old = store.pages.get(key)
            if old is not None and not replace:
                return Outcome.EXISTS
            grown = store.used + len(data) - (len(old[0]) if old else 0)
            if self._max_bytes is not None and grown > self._max_bytes:
                return Outcome.REJECTED
            store.pages[key] = (data, time.time())
            store.used = grown
            store.written += len(data)
        return Outcome.STORED


def _scatter(stored: bytes, page: Page, *, exact: bool) -> bool:
    """Copy a stored page into buffers. False where its length does not fit; nothing is touched then."""
    room = sum(map(len, page))
    if room != len(stored) if exact else room < len(stored):
        return False
    source, start = memoryview(stored), 0
    for buffer in page:
        piece = source[start : start + len(buffer)]
        copy_bytes(buffer[: len(piece)], piece)
        start += len(piece)
    return True


def _drop(store: MemoryStore, key: str) -> bool:
    found = store.pages.pop(key, None)
    if found is not None:
        store.used -= len(found[0])
    return found is not None
