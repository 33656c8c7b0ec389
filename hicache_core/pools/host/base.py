"""A pool of pages in host memory (L2): bytes in one of the five layouts, and the allocator of its slots."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from hicache_core.errors import ConfigError, MisuseError
from hicache_core.pools.geometry import Kind, KVGeometry
from hicache_core.pools.layouts import Layout, buffer_shape, layout_named, placements, pool_nbytes, region_table
from hicache_core.pools.memory import HostMemory
from hicache_core.pools.pages import Bytes, PagePool
from hicache_core.types import Buffer, PoolName, Slots


class HostPool(PagePool):
    """Pages of KV in host memory. It is a HostPoolView: `regions` and `pages` are what a store is lent.

    The pool knows bytes, not numbers: any dtype. Slots are page slots. A page's flat bytes are its regions in
    order, so the generic path (flat pages) and the zero-copy path (regions) carry the same bytes. Reading and
    writing pages is not locked: who holds a slot owns its bytes.
    """

    tier: ClassVar[str] = "host"
    kind: ClassVar[Kind]

    def __init__(
        self,
        geometry: KVGeometry,
        layout: str,
        num_pages: int,
        memory: HostMemory | memoryview | Bytes,
        *,
        name: PoolName = PoolName.KV,
    ) -> None:
        super().__init__(geometry, num_pages)
        self._layout: Layout = layout_named(layout)
        self.name = name
        self.nbytes = pool_nbytes(geometry, self._layout, num_pages)
        self.owner: object = memory
        self._memory = memory if isinstance(memory, HostMemory) else None
        self._bytes: Bytes | None = _byte_array(memory)[: self.nbytes]
        if self._bytes.size < self.nbytes:
            raise ConfigError(f"the pool needs {self.nbytes:,} bytes, the memory given has {self._bytes.size:,}")
        self.placements = placements(geometry, self._layout, num_pages)
        self.table = region_table(geometry, self._layout, num_pages)
        self._address = self._bytes.ctypes.data
        ends = np.cumsum(self.table.size)
        self._flat = [(int(end - size), int(end)) for end, size in zip(ends, self.table.size, strict=True)]

    @property
    def layout(self) -> str:
        """Name of the layout."""
        return self._layout.name

    @property
    def memory(self) -> HostMemory | None:
        """The mapping, None where a store lent the memory."""
        return self._memory

    @property
    def buffer(self) -> Bytes:
        """All bytes of the pool: uint8[nbytes]. Raises MisuseError after close."""
        if self._bytes is None:
            raise MisuseError(f"host pool {self.name} is closed")
        return self._bytes

    # -- what a store sees

    def regions(self, slots: Slots) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Addresses and sizes in bytes: (ptrs int64[n, r], sizes int64[n, r]), regions in the layout's order."""
        self._check(slots)
        starts = self.table.starts(slots)
        return starts + self._address, np.broadcast_to(self.table.size, starts.shape)

    def pages(self, slots: Slots) -> list[list[Buffer]]:
        """The same regions as writable byte buffers: n lists of r. They keep the pool's memory from being closed."""
        self._check(slots)
        view = self.buffer.data
        sizes = self.table.size.tolist()
        if len(sizes) == 1:
            size = sizes[0]
            return [[view[at : at + size]] for (at,) in self.table.starts(slots).tolist()]
        if len(sizes) == 2:  # K and V: a third of the cost of the loop below, on the path of every call
            first, second = sizes
            return [[view[a : a + first], view[b : b + second]] for a, b in self.table.starts(slots).tolist()]
        return [
            [view[at : at + size] for at, size in zip(page, sizes, strict=True)]
            for page in self.table.starts(slots).tolist()
        ]

    # -- flat pages

    def get_data_page(self, slot: int, out: Bytes | None = None) -> Bytes:
        """A copy of the page's flat bytes: uint8[page_nbytes], in `out` where given."""
        page = self.get_dummy_flat_data_page() if out is None else self._flat_page(out)
        for (start, end), region in zip(self._flat, self._page_arrays(slot), strict=True):
            page[start:end] = region
        return page

    def get_dummy_flat_data_page(self) -> Bytes:
        """A zeroed buffer of a page's size: uint8[page_nbytes]."""
        return np.zeros(self.page_nbytes, dtype=np.uint8)

    def set_from_flat_data_page(self, slot: int, page: Bytes | Buffer | bytes) -> None:
        """Write the page from its flat bytes. Raises MisuseError where the length is another."""
        flat = self._flat_page(page)
        for (start, end), region in zip(self._flat, self._page_arrays(slot), strict=True):
            region[:] = flat[start:end]

    def part_bytes(self, part: int) -> Bytes:
        """One part in the layout's shape, rows in bytes; for page_first: uint8[token, layer, head, row]."""
        *shape, row = buffer_shape(self.geometry, self._layout, self.num_pages)[part]
        at = self.placements[part].offset
        shaped = (*shape, row * self.geometry.itemsize)
        return self.buffer[at : at + math.prod(shaped)].reshape(shaped)

    def close(self) -> None:
        """Unmap. Idempotent. Raises BufferError while views of the memory live; call again once they are gone."""
        self._bytes = None
        if self._memory is not None:
            self._memory.close()

    def _page_arrays(self, slot: int) -> list[Bytes]:
        self._check(np.array([slot], dtype=np.int64))
        data, table = self.buffer, self.table
        return [
            data[at + slot * stride : at + slot * stride + size]
            for at, stride, size in zip(
                table.offset.tolist(), table.stride.tolist(), table.size.tolist(), strict=True
            )
        ]

    def _flat_page(self, page: Bytes | Buffer | bytes) -> Bytes:
        flat = page if isinstance(page, np.ndarray) else np.frombuffer(page, dtype=np.uint8)
        if flat.nbytes != self.page_nbytes:
            raise MisuseError(f"a flat page of pool {self.name} has {self.page_nbytes} bytes, not {flat.nbytes}")
        return flat.reshape(-1).view(np.uint8)

    def _check(self, slots: Slots) -> None:
        if slots.size and (int(slots.min()) < 0 or int(slots.max()) >= self.num_pages):
            raise MisuseError(f"slot out of range: pool {self.name} has {self.num_pages} pages")


def _byte_array(memory: HostMemory | memoryview | Bytes) -> Bytes:
    if isinstance(memory, HostMemory):
        return memory.bytes()
    data = (
        np.frombuffer(memory, dtype=np.uint8) if isinstance(memory, memoryview) else memory.reshape(-1).view(np.uint8)
    )
    if not data.flags.writeable:
        raise ConfigError("the memory for a host pool must be writable")
    return data
