"""Registration: the session's regions, host pools, and memory that the standalone client shares."""

from __future__ import annotations

import ctypes
import mmap
import threading
from typing import Any

from hicache_core.errors import CapacityError, MisuseError, OpenError
from hicache_core.storage.lent_memory import Extent, LentMemory, address_of, extents_of
from hicache_core.storage.seals import aligned_memory
from hicache_core.types import Buffer, HostPoolView, PoolName
from hicache_mooncake import metrics
from hicache_mooncake.bounce import Bounce
from hicache_mooncake.client import Client
from hicache_mooncake.codes import told
from hicache_mooncake.connect import available_memory
from hicache_mooncake.options import MooncakeOptions


class Lending:
    """What is lent to one client. Thread-safe."""

    def __init__(self, client: Client, options: MooncakeOptions) -> None:
        self._client, self._options = client, options
        self._memory = LentMemory()
        self._lock = threading.Lock()
        self._pools: dict[PoolName, tuple[HostPoolView, list[Extent]]] = {}
        self._own: object = None
        self.bounce = self._make_bounce()

    @property
    def registered_bytes(self) -> int:
        """Bytes registered with the SDK now."""
        return sum(nbytes for _, nbytes in self._memory.all())

    def pool(self, name: PoolName) -> HostPoolView:
        """Raises MisuseError for one that is not registered."""
        found = self._pools.get(name)
        if found is None:
            raise MisuseError(f"host pool {name} is not registered with this Mooncake store")
        return found[0]

    def add_region(self, buffer: Buffer) -> None:
        """Memory outside of what a standalone client sees cannot be registered: it goes through the bounce."""
        if buffer.nbytes and not self._options.standalone_address:
            self._register((address_of(buffer), buffer.nbytes), "session memory", shareable=False)

    def remove_region(self, buffer: Buffer) -> None:
        """See add_region."""
        if buffer.nbytes and not self._options.standalone_address:
            self._unregister(address_of(buffer), "session memory")

    def add_pool(self, view: HostPoolView) -> None:
        """Raises MisuseError where it, or a part of it, is registered; CapacityError where the store is smaller."""
        extents = extents_of(view)
        self._check_capacity(view, sum(nbytes for _, nbytes in extents))
        if self._options.standalone_address:
            extents = []  # what it shares was registered when it was allocated, anything else goes through the bounce
        with self._lock:
            if view.name in self._pools:
                raise MisuseError(f"host pool {view.name} is registered with this Mooncake store already")
            self._pools[view.name] = view, extents
        done = []
        try:
            for extent in extents:
                self._register(extent, f"host pool {view.name}", shareable=True)
                done.append(extent)
        except BaseException:
            for start, _ in done:
                self._unregister(start, f"host pool {view.name}")
            del self._pools[view.name]
            raise

    def remove_pool(self, view: HostPoolView) -> None:
        """Raises MisuseError where it is not registered."""
        with self._lock:
            found = self._pools.get(view.name)
            if found is None or found[0] is not view:
                raise MisuseError(f"host pool {view.name} is not registered with this Mooncake store")
            del self._pools[view.name]
        for start, _ in found[1]:
            self._unregister(start, f"host pool {view.name}")

    def allocate(self, nbytes: int, alignment: int) -> Buffer | None:
        """Shared memory of the standalone client, which lives as long as the buffer; None without one."""
        if not self._options.standalone_address:
            return None
        free = available_memory()
        if free is not None and nbytes > free:
            raise CapacityError(
                f"a host pool of {nbytes:,} bytes is more than the memory that is free for standalone storage here "
                f"({free:,}); make the pool smaller"
            )
        spare = alignment if alignment > mmap.PAGESIZE else 0
        start = self._client.allocate(nbytes + spare)
        self._register((start, nbytes + spare), "memory of the standalone client", shareable=False)
        start += -start % max(1, alignment)
        return _shared(start, nbytes, self._client)

    def release(self) -> None:
        """Take back everything that is still registered."""
        self._pools.clear()
        for start, _ in self._memory.all():
            self._client.unregister(start)
        self._memory = LentMemory()

    def _check_capacity(self, view: HostPoolView, nbytes: int) -> None:
        store = metrics.store_size(self._options)
        if store is not None and store.capacity and nbytes > store.capacity:
            raise CapacityError(
                f"host pool {view.name} has {nbytes:,} bytes, the whole Mooncake store {store.capacity:,}: what "
                "leaves the pool would not fit; give the store more memory (segment_size here, or "
                "--global_segment_size of a mooncake_client) or make the pool smaller"
            )

    def _register(self, extent: Extent, holder: str, *, shareable: bool) -> None:
        if not self._memory.add(extent, holder, shareable=shareable):
            return
        code = self._client.register(*extent)
        if code != 0:
            self._memory.remove(extent[0], holder)
            raise OpenError(
                f"Mooncake did not register {extent[1]:,} bytes at {extent[0]:#x} ({holder}): {told(code)}. With "
                "RDMA the limit of locked memory counts: ulimit -l unlimited"
            )

    def _unregister(self, start: int, holder: str) -> None:
        if self._memory.remove(start, holder):
            self._client.unregister(start)

    def _make_bounce(self) -> Bounce:
        nbytes = self._options.bounce_size
        if self._options.standalone_address:
            start = self._client.allocate(nbytes)
        else:
            memory = aligned_memory(nbytes)
            self._own, start = memory, address_of(memory)
        self._register((start, nbytes), "bounce memory", shareable=False)
        any_memory = self._options.protocol == "tcp" and not self._options.standalone_address
        return Bounce((start, nbytes), None if any_memory else self._memory.covers)


def _shared(start: int, nbytes: int, client: Client) -> Buffer:
    kind: Any = type("SharedMemory", (ctypes.c_ubyte * nbytes,), {})
    array = kind.from_address(start)
    array.client = client
    return memoryview(array).cast("B")
