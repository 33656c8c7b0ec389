"""The hooks of backend `s3`."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Sequence

from hicache_core.plugin.spec import hookimpl, pagewise
from hicache_core.storage.gate import Gate, tell_forked_child
from hicache_core.storage.legality import legal_namespace
from hicache_core.types import IoContext, OpenContext, Outcome, Page
from hicache_s3.directory import Directory
from hicache_s3.opening import Store, open_store
from hicache_s3.options import S3Options
from hicache_s3.pages import Pages
from hicache_s3.presence import Presence
from hicache_s3.stats import S3Stats

_CLOSE_PATIENCE_SECONDS = 5.0
_open: weakref.WeakSet[S3Backend] = weakref.WeakSet()


def _close_all() -> None:
    """A thread that comes back from Rust into an interpreter that is going down would abort the process."""
    for backend in list(_open):
        backend.close()


atexit.register(_close_all)


def open_s3(options: S3Options, ctx: OpenContext) -> S3Backend:
    """Open the store at options.url. Raises OptionError or OpenError, with what to do about it."""
    return S3Backend(open_store(options, inspecting=ctx.inspecting))


class S3Backend:
    """Pages as objects. Thread-safe; several of these, in one process or many, may share a bucket and prefix."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pages, self._presence, self._directory = Pages(store), Presence(store), Directory(store)
        self._gate = Gate("s3 store", store.close)
        self.capabilities = store.capabilities
        _open.add(self)
        tell_forked_child(self)

    @hookimpl
    def batch_exists(self, keys: Sequence[str], ctx: IoContext) -> int:
        """Length of the run of leading keys that have an object; all asked for at once."""
        with self._gate.call():
            return self._presence.run_of(keys, ctx.deadline)

    @hookimpl
    def batch_contains(self, keys: Sequence[str], ctx: IoContext) -> list[bool]:
        """For each key whether it has an object."""
        with self._gate.call():
            return self._presence.contains(keys, ctx.deadline)

    @hookimpl
    @pagewise
    def batch_get(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> list[Outcome]:
        """Read each object and copy it into its page's buffers."""
        with self._gate.call():
            return self._pages.read(keys, pages, ctx)

    @hookimpl
    @pagewise
    def batch_set(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> list[Outcome]:
        """Join each page's buffers and put them as one object."""
        with self._gate.call():
            return self._pages.write(keys, pages, ctx)

    @hookimpl
    def delete(self, keys: Sequence[str], ctx: IoContext) -> list[Outcome]:
        """Remove objects."""
        with self._gate.call():
            return self._pages.remove(keys, ctx.deadline)

    @hookimpl
    def clear(self, namespace: str) -> int:
        """Remove every page of this namespace."""
        with self._gate.call():
            return self._directory.clear(namespace) if legal_namespace(namespace) else 0

    @hookimpl
    def scan(self, namespace: str | None, cursor: str | None) -> tuple[list[tuple[str, int, float]], str | None]:
        """One page of the server's listing, without what is no page of ours, and where to go on."""
        with self._gate.call():
            if namespace is not None and not legal_namespace(namespace):
                return [], None
            return self._directory.scan(namespace, cursor)

    @hookimpl
    def stats(self) -> S3Stats:
        """Counts of this open store."""
        client, counters = self._store.client, self._store.counters
        return S3Stats(
            client=client.name,
            conditional_create=client.conditional,
            requests=counters.requests,
            bytes_read=counters.bytes_read,
            bytes_written=counters.bytes_written,
            rejected=counters.rejected,
            errors=counters.errors,
            last_error=counters.last_error,
        )

    @hookimpl
    def close(self) -> None:
        """End threads and connections; waits a little for calls that are still running, the last of which does it."""
        if not self._gate.close(_CLOSE_PATIENCE_SECONDS):
            self._store.threads.close()  # those without work end at once

    def leave_to_parent(self) -> None:
        """In a forked child: threads and connections are the parent's."""
        self._gate.abandon()
