"""The hooks of backend `file`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from hicache_core.errors import MisuseError
from hicache_core.plugin.spec import hookimpl, pagewise
from hicache_core.storage.gate import Gate, tell_forked_child
from hicache_core.types import IoContext, OpenContext, Outcome, Page
from hicache_file.listing import scan
from hicache_file.locks import LockTimeout
from hicache_file.names import legal_namespace
from hicache_file.opening import open_store
from hicache_file.options import FileOptions
from hicache_file.publish import Publisher
from hicache_file.retrieve import Reader
from hicache_file.stats import FileStats
from hicache_file.store import Store

_CLOSE_PATIENCE_SECONDS = 5.0


def open_file(options: FileOptions, ctx: OpenContext) -> FileBackend:
    """Open the store at options.root. Raises OptionError or OpenError, with what to do about it."""
    return FileBackend(open_store(options, inspecting=ctx.inspecting))


class FileBackend:
    """Pages as files. Thread-safe; several of these, in one process or many, may share a root.

    publisher, reader: others that move the bytes in their own way.
    """

    def __init__(self, store: Store, publisher: Publisher | None = None, reader: Reader | None = None) -> None:
        self._store = store
        self._publisher, self._reader = publisher or Publisher(store), reader or Reader(store)
        self._gate = Gate("file store", lambda: self._release(ours=True))
        self.capabilities = store.capabilities
        tell_forked_child(self)

    @hookimpl
    def batch_exists(self, keys: Sequence[str], ctx: IoContext) -> int:
        """Length of the run of leading keys whose files are there."""
        with self._gate.call():
            directory, access, there = self._store.directory, os.access, os.F_OK
            fd = directory.fd
            for count, path in enumerate(directory.find_each(keys)):
                if path is None or not access(path, there, dir_fd=fd):
                    return count
            return len(keys)

    @hookimpl
    def batch_contains(self, keys: Sequence[str], ctx: IoContext) -> list[bool]:
        """For each key whether its file is there."""
        with self._gate.call():
            fd = self._store.directory.fd
            paths = self._store.directory.find_each(keys)
            return [path is not None and os.access(path, os.F_OK, dir_fd=fd) for path in paths]

    @hookimpl
    @pagewise
    def batch_get(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> list[Outcome]:
        """Read each file into its page's buffers."""
        with self._gate.call():
            return self._reader.read(keys, pages, ctx)

    @hookimpl
    @pagewise
    def batch_set(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> list[Outcome]:
        """Write each page to a temporary and give it its place in one step."""
        with self._gate.call():
            return self._publisher.write(keys, pages, ctx)

    @hookimpl
    @pagewise
    def batch_get_v1(self, keys: Sequence[str], ctx: IoContext) -> list[Outcome]:
        """Scatter each file straight into the pool's regions, which `ctx.pages` holds with the seals in front."""
        return self.batch_get(keys, _pages(ctx), ctx)

    @hookimpl
    @pagewise
    def batch_set_v1(self, keys: Sequence[str], ctx: IoContext) -> list[Outcome]:
        """Gather each file straight from the pool's regions."""
        return self.batch_set(keys, _pages(ctx), ctx)

    @hookimpl
    def delete(self, keys: Sequence[str], ctx: IoContext) -> list[Outcome]:
        """Remove files."""
        with self._gate.call():
            paths = [self._store.directory.find(key) for key in keys]
            try:
                return self._store.space.remove(paths, ctx.deadline)
            except LockTimeout:
                return [Outcome.TIMEOUT] * len(keys)

    @hookimpl
    def clear(self, namespace: str) -> int:
        """Remove every page of this namespace, and its directories where nothing foreign is in them."""
        with self._gate.call():
            return self._store.space.clear(namespace) if legal_namespace(namespace) else 0

    @hookimpl
    def scan(self, namespace: str | None, cursor: str | None) -> tuple[list[tuple[str, int, float]], str | None]:
        """Some of the pages, one leaf directory at least, and where to go on."""
        with self._gate.call():
            return scan(self._store.directory, namespace, cursor)

    @hookimpl
    def stats(self) -> FileStats:
        """Counts; the root is counted again first where a process died at work in it."""
        with self._gate.call():
            return self._store.stats()

    @hookimpl
    def close(self) -> None:
        """Release every descriptor; waits a little for calls that are still running, the last of which does it."""
        self._gate.close(_CLOSE_PATIENCE_SECONDS)

    def leave_to_parent(self) -> None:
        """In a forked child: give up every descriptor. A lock that the parent holds would else outlive the parent."""
        self._gate.abandon()
        self._release(ours=False)

    def _release(self, *, ours: bool) -> None:
        """Let go of everything; `ours` false in a forked child. No call is running. May come twice."""
        self._store.close(ours=ours)


def _pages(ctx: IoContext) -> Sequence[Page]:
    pages = ctx.pages
    if pages is None or isinstance(pages, Mapping):
        raise MisuseError("a v1 call needs its pages in ctx.pages, one per key")
    return pages
