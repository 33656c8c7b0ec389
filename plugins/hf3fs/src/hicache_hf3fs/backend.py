"""The hooks of backend `hf3fs`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hicache_core.errors import MisuseError
from hicache_core.plugin.spec import hookimpl, pagewise
from hicache_core.storage.gate import Gate, tell_forked_child
from hicache_core.storage.legality import legal_namespace, legal_positions
from hicache_core.types import HostPoolView, IoContext, OpenContext, Outcome, Page, PoolName, Slots
from hicache_hf3fs.counters import Hf3fsStats
from hicache_hf3fs.errors import IndexTimeout
from hicache_hf3fs.index.interface import askable
from hicache_hf3fs.opening import Store, open_store
from hicache_hf3fs.options import Hf3fsOptions

SCAN_ENTRIES = 1024
_CLOSE_PATIENCE_SECONDS = 5.0


def open_hf3fs(options: Hf3fsOptions, ctx: OpenContext) -> Hf3fsBackend:
    """Open the store at options.root. Raises OptionError, OpenError, MissingDependencyError with the mend."""
    return Hf3fsBackend(open_store(options, inspecting=ctx.inspecting))


class Hf3fsBackend:
    """Pages in slots. Thread-safe; several of these, in one process or many, may share a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pools: dict[PoolName, HostPoolView] = {}
        self._gate = Gate("hf3fs store", self._release)
        self.capabilities = store.capabilities
        tell_forked_child(self)

    @hookimpl
    def batch_exists(self, keys: Sequence[str], ctx: IoContext) -> int:
        """Length of the run of leading keys that the index has."""
        with self._gate.call():
            rows = self._store.index.lookup(askable(keys), ctx.deadline).rows
            return next((count for count, row in enumerate(rows) if row is None), len(rows))

    @hookimpl
    def batch_contains(self, keys: Sequence[str], ctx: IoContext) -> list[bool]:
        """For each key whether the index has it."""
        with self._gate.call():
            return [row is not None for row in self._store.index.lookup(askable(keys), ctx.deadline).rows]

    @hookimpl
    @pagewise
    def batch_get(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> list[Outcome]:
        """Read each slot into its page's buffers."""
        with self._gate.call():
            try:
                return self._store.reader.read(keys, pages, ctx)
            except IndexTimeout as error:
                return self._late(error, len(keys))

    @hookimpl
    @pagewise
    def batch_set(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> list[Outcome]:
        """Write each page to a slot of its own and then name it in the index."""
        with self._gate.call():
            try:
                return self._store.writer.write(keys, pages, ctx)
            except IndexTimeout as error:
                return self._late(error, len(keys))

    @hookimpl
    @pagewise
    def batch_get_v1(self, keys: Sequence[str], host_indices: Slots, ctx: IoContext) -> list[Outcome]:
        """batch_get straight into the registered pool."""
        return self.batch_get(keys, self._pages(host_indices, ctx), ctx)

    @hookimpl
    @pagewise
    def batch_set_v1(self, keys: Sequence[str], host_indices: Slots, ctx: IoContext) -> list[Outcome]:
        """batch_set straight from the registered pool."""
        return self.batch_set(keys, self._pages(host_indices, ctx), ctx)

    @hookimpl
    def register_host_pool(self, view: HostPoolView) -> None:
        """Remember the pool; its memory needs no registration."""
        self._pools[view.name] = view

    @hookimpl
    def unregister_host_pool(self, view: HostPoolView) -> None:
        """Forget the pool."""
        self._pools.pop(view.name, None)

    @hookimpl
    def delete(self, keys: Sequence[str], ctx: IoContext) -> list[Outcome]:
        """Remove pages from the index; their slots are free at once."""
        with self._gate.call():
            outcomes = [Outcome.MISS] * len(keys)
            legal = legal_positions(keys)
            gone = self._store.index.delete([keys[i] for i in legal], ctx.deadline)
            for i, was_there in zip(legal, gone, strict=True):
                if was_there:
                    outcomes[i] = Outcome.HIT
            return outcomes

    @hookimpl
    def clear(self, namespace: str) -> int:
        """Remove every page of this namespace, and give its blocks back where the file system can."""
        with self._gate.call():
            if not legal_namespace(namespace):
                return 0
            count = self._store.index.clear(namespace)
            self._store.writer.trim()
            return count

    @hookimpl
    def scan(self, namespace: str | None, cursor: str | None) -> tuple[list[tuple[str, int, float]], str | None]:
        """Some of the pages, in the order of their keys; the cursor is the last of them."""
        with self._gate.call():
            if namespace is not None and not legal_namespace(namespace):
                return [], None
            found = self._store.index.scan(namespace, cursor, SCAN_ENTRIES)
            return [(key, nbytes, used) for key, nbytes, used in found], found[-1].key if len(
                found
            ) == SCAN_ENTRIES else None

    @hookimpl
    def stats(self) -> Hf3fsStats:
        """Counts of the store and of this open one."""
        with self._gate.call():
            return self._store.stats()

    @hookimpl
    def close(self) -> None:
        """Release everything; waits a little for calls that are still running, the last of which does it."""
        self._gate.close(_CLOSE_PATIENCE_SECONDS)

    def leave_to_parent(self) -> None:
        """In a forked child: give up every descriptor. A lock that the parent holds would else outlive the parent."""
        self._gate.abandon()
        self._store.close(ours=False)

    def _pages(self, slots: Slots, ctx: IoContext) -> Sequence[Page]:
        if ctx.pages is not None and not isinstance(ctx.pages, Mapping):
            return ctx.pages
        view = self._pools.get(PoolName.KV)
        if view is None:
            raise MisuseError("no KV host pool is registered")
        pages = view.pages(slots)
        if ctx.seals is None or isinstance(ctx.seals, Mapping):
            return pages
        return [[seal, *page] for seal, page in zip(ctx.seals, pages, strict=True)]

    def _late(self, error: IndexTimeout, count: int) -> list[Outcome]:
        self._store.counters.note(error)
        return [Outcome.TIMEOUT] * count

    def _release(self) -> None:
        self._pools.clear()
        self._store.close()
