"""Opening, and the hooks that hicache-file's backend does not have: registration."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import msgspec
from hicache_file.backend import FileBackend
from hicache_file.opening import open_store
from hicache_file.store import Store

from hicache_core.errors import MisuseError, OpenError, OptionError
from hicache_core.plugin.spec import hookimpl
from hicache_core.storage.lent_memory import Extent, address_of, extents_of
from hicache_core.storage.seals import aligned_memory
from hicache_core.types import Buffer, HostPoolView, IoContext, OpenContext, Outcome, Page, PoolName
from hicache_nixl.agents import Agents
from hicache_nixl.objects import open_objects
from hicache_nixl.options import PARAMETERS, NixlOptions, capabilities
from hicache_nixl.posix import Mover, NixlPublisher, NixlReader


def open_nixl(options: NixlOptions, ctx: OpenContext) -> object:
    """A backend on files or objects. Raises OptionError and OpenError, with the mend."""
    if options.plugin == "OBJ":
        return open_objects(options)
    if not options.root:
        raise OptionError("backend 'nixl' with plugin POSIX needs option root: the store's own directory")
    with ExitStack() as undo:
        store = open_store(options.of_files(), inspecting=ctx.inspecting)
        undo.callback(store.close)
        agents = _agents(options)
        undo.callback(agents.close)
        backend = NixlFileBackend(store, agents, options)
        undo.pop_all()
        return backend


def _agents(options: NixlOptions) -> Agents:
    """Agents of the engine that was asked for. Raises OpenError. Containers often forbid io_uring."""
    if options.engine != "auto":
        return Agents(options.agents, "POSIX", PARAMETERS[options.engine])
    try:
        return Agents(options.agents, "POSIX", PARAMETERS["io_uring"])
    except OpenError:
        return Agents(options.agents, "POSIX", PARAMETERS["posix_aio"])


class NixlStats(msgspec.Struct):
    """How pages went. files: what hicache-file counts."""

    files: Any
    by_nixl: int
    by_system_calls: int
    """Pages that NIXL gave up and plain system calls moved."""
    bounced: int
    """Pages that went through the bounce buffer."""


class NixlFileBackend(FileBackend):
    """Pages as files, moved by NIXL. Thread-safe."""

    def __init__(self, store: Store, agents: Agents, options: NixlOptions) -> None:
        self._agents = agents
        size = options.bounce_size // options.agents // 4096 * 4096
        arenas = {}
        for name in agents.names:
            arena = aligned_memory(size)
            agents.register((address_of(arena), size), "bounce memory")
            arenas[name] = arena
        self._mover = Mover(agents, arenas, direct=options.direct)
        super().__init__(store, NixlPublisher(store, self._mover), NixlReader(store, self._mover))
        self.capabilities = capabilities(options)
        self._pools: dict[PoolName, tuple[HostPoolView, list[Extent]]] = {}
        self._registering = threading.Lock()

    @hookimpl
    def batch_get(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> list[Outcome]:
        """As hicache-file's, without its mark `pagewise`: a transfer's pages come together, too many for a cache."""
        return super().batch_get(keys, pages, ctx)

    @hookimpl
    def batch_set(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> list[Outcome]:
        """See batch_get."""
        return super().batch_set(keys, pages, ctx)

    @hookimpl
    def register_region(self, buffer: Buffer) -> None:
        """Memory of the session: seals and staging. Raises MisuseError where it is registered already."""
        if buffer.nbytes:
            self._agents.register((address_of(buffer), buffer.nbytes), "session memory")

    @hookimpl
    def unregister_region(self, buffer: Buffer) -> None:
        """See register_region."""
        if buffer.nbytes:
            self._agents.unregister((address_of(buffer), buffer.nbytes), "session memory")

    @hookimpl
    def register_host_pool(self, view: HostPoolView) -> None:
        """A pool whose pages go straight. Raises MisuseError where it is registered already."""
        with self._registering:
            if view.name in self._pools:
                raise MisuseError(f"host pool {view.name} is registered with this NIXL store already")
            done: list[Extent] = []
            try:
                for extent in extents_of(view):
                    self._agents.register(extent, f"host pool {view.name}", shareable=True)
                    done.append(extent)
            except BaseException:
                for extent in done:
                    self._agents.unregister(extent, f"host pool {view.name}")
                raise
            self._pools[view.name] = view, done

    @hookimpl
    def unregister_host_pool(self, view: HostPoolView) -> None:
        """See register_host_pool. Raises MisuseError where it is not registered."""
        with self._registering:
            found = self._pools.get(view.name)
            if found is None or found[0] is not view:
                raise MisuseError(f"host pool {view.name} is not registered with this NIXL store")
            del self._pools[view.name]
            for extent in found[1]:
                self._agents.unregister(extent, f"host pool {view.name}")

    @hookimpl
    def stats(self) -> Any:
        """Counts of hicache-file, and how pages went."""
        mover = self._mover
        return NixlStats(super().stats(), mover.by_nixl, mover.by_system_calls, mover.bounced)

    def _release(self, *, ours: bool) -> None:
        super()._release(ours=ours)
        if ours:
            self._agents.close()
            self._pools.clear()
