"""An open store, as controllers, tools and adapters hold it.

Every operation exists twice: `get(…)` waits for its answer, `submit_get(…)` returns a `Handle`. On the data path
nothing raises for what a store does: it is an outcome, by the deadline. `MisuseError` is raised for a call after
close, in a forked process, or with lists of unequal length.

Page hashes go in; physical keys, seals, transforms and damaged pages are the session's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hicache_core.errors import MisuseError
from hicache_core.namespace import Identity
from hicache_core.storage.admin import Administration
from hicache_core.storage.batches import Buffers, PageBatch, as_pages
from hicache_core.storage.calls import ExistsAnswer
from hicache_core.storage.handles import Handle
from hicache_core.storage.operations import ExistsHandle, Operations
from hicache_core.storage.parts import Parts
from hicache_core.storage.settings import CloseReport, SessionStatus
from hicache_core.types import (
    Capabilities,
    HostPoolView,
    Outcome,
    PoolName,
    PoolTransfer,
    PoolTransferResult,
    Slots,
)

PoolQuery = PoolTransfer
"""What exists_v2 asks of one pool beyond KV: its name, policy and window; `keys` are page hashes here."""


class StorageSession:
    """See the module; made by `open_session`. Thread-safe. A context manager that closes."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._operations = Operations(parts)
        self._admin = Administration(parts)
        self.identity: Identity = parts.identity
        self.namespace: str = parts.schema.namespace
        self.capabilities: Capabilities = parts.guard.capabilities
        self.backend_name: str = parts.name
        self.ledger = parts.ledger
        self.settings = parts.settings
        self.breakers = {str(group.direction): group.breaker for group in parts.groups}

    def __enter__(self) -> StorageSession:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<StorageSession {self.backend_name} {self.namespace}{' closed' if self._parts.closed else ''}>"

    # -- what is there ------------------------------------------------------------------------------------------

    def submit_exists(
        self,
        hashes: Sequence[str],
        *,
        pool: str = "kv",
        timeout: float | None = None,
        prefix: Sequence[str] | None = None,
    ) -> ExistsHandle:
        """Length of the run of existing pages from the start; `handle.reason` says why it ended.

        prefix: hashes of the pages before the first one, for stores that want them.
        """
        self._parts.check_open()
        return self._operations.exists(hashes, pool, timeout, prefix)

    def exists(
        self,
        hashes: Sequence[str],
        *,
        pool: str = "kv",
        timeout: float | None = None,
        prefix: Sequence[str] | None = None,
    ) -> int:
        """See submit_exists."""
        return self.query(hashes, pool=pool, timeout=timeout, prefix=prefix).count

    def query(
        self,
        hashes: Sequence[str],
        *,
        pool: str = "kv",
        timeout: float | None = None,
        prefix: Sequence[str] | None = None,
    ) -> ExistsAnswer:
        """exists, with the reason why the run ended."""
        self._parts.check_open()
        return self._operations.exists(hashes, pool, timeout, prefix, watched=False).answer()

    def submit_contains(
        self, hashes: Sequence[str], *, pool: str = "kv", timeout: float | None = None
    ) -> Handle[list[bool]]:
        """One bool per page; False too where the store gave no answer."""
        self._parts.check_open()
        return self._operations.contains(hashes, pool, timeout)

    def contains(self, hashes: Sequence[str], *, pool: str = "kv", timeout: float | None = None) -> list[bool]:
        """See submit_contains."""
        return self.submit_contains(hashes, pool=pool, timeout=timeout).result()

    def submit_exists_v2(
        self, hashes: Sequence[str], transfers: Sequence[PoolQuery], *, timeout: float | None = None
    ) -> Handle[PoolTransferResult]:
        """Every prefix length that can be restored over KV and further pools. One query per pool, of equal length."""
        self._parts.check_open()
        return self._operations.exists_v2(hashes, transfers, timeout)

    def exists_v2(
        self, hashes: Sequence[str], transfers: Sequence[PoolQuery], *, timeout: float | None = None
    ) -> PoolTransferResult:
        """See submit_exists_v2."""
        return self.submit_exists_v2(hashes, transfers, timeout=timeout).result()

    # -- pages as buffers ---------------------------------------------------------------------------------------

    def submit_get(
        self,
        hashes: Sequence[str],
        pages: Sequence[Buffers],
        *,
        pool: str = "kv",
        timeout: float | None = None,
        priority: int = 0,
    ) -> Handle[list[Outcome]]:
        """Fill each page (a sequence of writable buffers, without seal). On anything but HIT it is undefined."""
        return self._get(hashes, pages, pool, timeout, priority, watched=True)

    def get(
        self,
        hashes: Sequence[str],
        pages: Sequence[Buffers],
        *,
        pool: str = "kv",
        timeout: float | None = None,
        priority: int = 0,
    ) -> list[Outcome]:
        """See submit_get. After a TIMEOUT the store may still write into the page: submit_get tells until when."""
        return self._get(hashes, pages, pool, timeout, priority, watched=False).result()

    def submit_set(
        self,
        hashes: Sequence[str],
        pages: Sequence[Buffers],
        *,
        pool: str = "kv",
        replace: bool = False,
        timeout: float | None = None,
        priority: int = 0,
    ) -> Handle[list[Outcome]]:
        """Store each page (a sequence of readable buffers, without seal). replace: over what is there."""
        return self._set(hashes, pages, pool, replace, timeout, priority, watched=True)

    def set(
        self,
        hashes: Sequence[str],
        pages: Sequence[Buffers],
        *,
        pool: str = "kv",
        replace: bool = False,
        timeout: float | None = None,
        priority: int = 0,
    ) -> list[Outcome]:
        """See submit_set."""
        return self._set(hashes, pages, pool, replace, timeout, priority, watched=False).result()

    # -- pages in registered pools ------------------------------------------------------------------------------

    def submit_get_v1(
        self,
        hashes: Sequence[str],
        slots: Slots,
        *,
        pool: str = "kv",
        timeout: float | None = None,
        priority: int = 0,
    ) -> Handle[list[Outcome]]:
        """Fill pages of a registered host pool. slots: int64[len(hashes)]. Quarantine them until `returned`."""
        return self._get_v1(hashes, slots, pool, timeout, priority, watched=True)

    def get_v1(
        self,
        hashes: Sequence[str],
        slots: Slots,
        *,
        pool: str = "kv",
        timeout: float | None = None,
        priority: int = 0,
    ) -> list[Outcome]:
        """See submit_get_v1."""
        return self._get_v1(hashes, slots, pool, timeout, priority, watched=False).result()

    def submit_set_v1(
        self,
        hashes: Sequence[str],
        slots: Slots,
        *,
        pool: str = "kv",
        replace: bool = False,
        timeout: float | None = None,
        priority: int = 0,
    ) -> Handle[list[Outcome]]:
        """Store pages of a registered host pool. slots: int64[len(hashes)]."""
        return self._set_v1(hashes, slots, pool, replace, timeout, priority, watched=True)

    def set_v1(
        self,
        hashes: Sequence[str],
        slots: Slots,
        *,
        pool: str = "kv",
        replace: bool = False,
        timeout: float | None = None,
        priority: int = 0,
    ) -> list[Outcome]:
        """See submit_set_v1."""
        return self._set_v1(hashes, slots, pool, replace, timeout, priority, watched=False).result()

    def submit_get_v2(
        self, transfers: Sequence[PoolTransfer], *, timeout: float | None = None, priority: int = 0
    ) -> Handle[dict[PoolName, list[Outcome]]]:
        """Fill pages of several registered pools; keys are page hashes. Without slots (no bytes): HIT."""
        self._parts.check_open()
        return self._operations.get_v2(transfers, timeout, priority)

    def get_v2(
        self, transfers: Sequence[PoolTransfer], *, timeout: float | None = None, priority: int = 0
    ) -> dict[PoolName, list[Outcome]]:
        """See submit_get_v2."""
        return self.submit_get_v2(transfers, timeout=timeout, priority=priority).result()

    def submit_set_v2(
        self, transfers: Sequence[PoolTransfer], *, timeout: float | None = None, priority: int = 0
    ) -> Handle[dict[PoolName, list[Outcome]]]:
        """Store pages of several registered pools. A transfer without slots has no bytes: EXISTS, never stored."""
        self._parts.check_open()
        return self._operations.set_v2(transfers, timeout, priority)

    def set_v2(
        self, transfers: Sequence[PoolTransfer], *, timeout: float | None = None, priority: int = 0
    ) -> dict[PoolName, list[Outcome]]:
        """See submit_set_v2."""
        return self.submit_set_v2(transfers, timeout=timeout, priority=priority).result()

    # -- memory -------------------------------------------------------------------------------------------------

    def register_host_pool(self, view: HostPoolView, *, timeout: float = 60.0) -> None:
        """Lend a host pool, by its name, until it is unregistered or the session closes.

        Raises ConfigError for a layout that the store cannot take, MisuseError for a name that is taken,
        StorageError where the store refuses it.
        """
        self._parts.check_open()
        self._admin.register_host_pool(view, timeout)

    def unregister_host_pool(self, view: HostPoolView, *, timeout: float = 60.0) -> None:
        """Take it back. The caller sees to it that no operation is under way. MisuseError where it is not lent."""
        self._parts.check_open()
        self._admin.unregister_host_pool(view, timeout)

    def allocate_host_memory(self, nbytes: int, alignment: int, *, timeout: float = 60.0) -> memoryview | None:
        """Memory for a host pool from the store's own allocator; None from stores that have none."""
        self._parts.check_open()
        return self._admin.allocate_host_memory(nbytes, alignment, timeout)

    # -- administration -----------------------------------------------------------------------------------------

    def delete(self, hashes: Sequence[str], *, pool: str = "kv", timeout: float | None = None) -> list[Outcome]:
        """HIT: was there, is gone; MISS: was not there. Raises NotSupportedError where the store cannot."""
        self._parts.check_open()
        return self._admin.delete(hashes, pool, timeout)

    def clear(self, *, timeout: float | None = None) -> int:
        """Remove every page of this session's namespace. NotSupportedError, or StorageError with the cause."""
        self._parts.check_open()
        return self._admin.clear(timeout)

    def scan(
        self, cursor: str | None = None, *, all_namespaces: bool = False, timeout: float | None = None
    ) -> tuple[list[tuple[str, int, float]], str | None]:
        """Some (physical key, bytes stored, mtime) and the next cursor, or None. Raises as clear."""
        self._parts.check_open()
        return self._admin.scan(cursor, all_namespaces, timeout)

    def stats(self, *, timeout: float | None = None) -> Any | None:
        """The store's own counters, None where it has none. Raises StorageError with the cause."""
        self._parts.check_open()
        return self._admin.stats(timeout)

    def healthy(self) -> bool:
        """Open, every breaker closed, and healing was not refused within this minute."""
        return self.status().healthy

    def status(self) -> SessionStatus:
        """A snapshot for tools; works after close too."""
        return self._parts.status()

    def close(self, timeout: float = 5.0) -> CloseReport:
        """Cancel what is queued, wait for what runs, close the store, end all threads. Idempotent.

        Waits `timeout` seconds at most; what has not returned by then is abandoned and reported.
        """
        return self._admin.close(timeout)

    # -- the shapes of an operation -----------------------------------------------------------------------------

    def _get(
        self,
        hashes: Sequence[str],
        pages: Sequence[Buffers],
        pool: str,
        timeout: float | None,
        priority: int,
        *,
        watched: bool,
    ) -> Handle[list[Outcome]]:
        self._parts.check_open()
        keys = self._parts.schema.physical(hashes, pool)
        views, sizes = as_pages(pages, len(keys), writable=True)
        return self._operations.get("batch_get", PageBatch(keys, views, sizes), timeout, priority, watched=watched)

    def _set(
        self,
        hashes: Sequence[str],
        pages: Sequence[Buffers],
        pool: str,
        replace: bool,
        timeout: float | None,
        priority: int,
        *,
        watched: bool,
    ) -> Handle[list[Outcome]]:
        self._parts.check_open()
        keys = self._parts.schema.physical(hashes, pool)
        views, sizes = as_pages(pages, len(keys), writable=False)
        batch = PageBatch(keys, views, sizes)
        return self._operations.set("batch_set", batch, replace, timeout, priority, watched=watched)

    def _get_v1(
        self, hashes: Sequence[str], slots: Slots, pool: str, timeout: float | None, priority: int, *, watched: bool
    ) -> Handle[list[Outcome]]:
        self._parts.check_open()
        batch = self._pool_batch(hashes, slots, pool)
        hook = "batch_get_v1" if pool == PoolName.KV else "batch_get"
        return self._operations.get(hook, batch, timeout, priority, watched=watched)

    def _set_v1(
        self,
        hashes: Sequence[str],
        slots: Slots,
        pool: str,
        replace: bool,
        timeout: float | None,
        priority: int,
        *,
        watched: bool,
    ) -> Handle[list[Outcome]]:
        self._parts.check_open()
        batch = self._pool_batch(hashes, slots, pool)
        hook = "batch_set_v1" if pool == PoolName.KV else "batch_set"
        return self._operations.set(hook, batch, replace, timeout, priority, watched=watched)

    def _pool_batch(self, hashes: Sequence[str], slots: Slots, pool: str) -> PageBatch:
        """v1 hooks speak of the KV pool; pages of other pools go as buffers."""
        try:
            name = PoolName(str(pool))
        except ValueError:
            raise MisuseError(f"{pool!r} is no pool name; known: {', '.join(PoolName)}") from None
        return self._parts.pool_batch(name, hashes, slots)
