"""SGLang's own host pool, on a CPU: the memory that a class reads and fills on its v1 path."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from hicache_core.errors import OpenError

POOL_PAGES = 128
"""SGLang moves at most 128 pages in one call (its STORAGE_BATCH_SIZE)."""


def make_pool(*, layout: str, dtype: Any, layers: int, heads: int, head_dim: int, page_size: int, pages: int) -> Any:
    """An `MHATokenToKVPoolHost` of `pages` pages, not pinned, with one page of device memory beside it (on the CPU).

    OpenError where this SGLang builds its pools in another way (before 0.5.23).
    """
    try:
        import torch
        from sglang.srt.mem_cache.device_pool_info import KVBufferLayout, KVBuffers, MHABufferInfo
        from sglang.srt.mem_cache.pool_host import base
        from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
    except ImportError as error:
        raise OpenError(f"this SGLang's host pool cannot be made here: {error}") from error
    sides = [[torch.zeros(page_size, heads, head_dim, dtype=dtype) for _ in range(layers)] for _ in "kv"]
    pointers = [torch.tensor([t.data_ptr() for t in side], dtype=torch.uint64) for side in sides]
    info = MHABufferInfo(
        buffers=KVBuffers(
            k=tuple(sides[0]),
            v=tuple(sides[1]),
            k_data_ptrs=pointers[0],
            v_data_ptrs=pointers[1],
            layout=KVBufferLayout.NHD,
        ),
        page_size=page_size,
        head_num=heads,
        head_dim=head_dim,
        v_head_dim=head_dim,
        dtype=dtype,
        device=torch.device("cpu"),
    )
    reserve, base.HICACHE_HOST_MEMORY_RESERVE_BYTES = base.HICACHE_HOST_MEMORY_RESERVE_BYTES, 0
    try:
        return MHATokenToKVPoolHost(
            info,
            1.0,
            0,
            page_size,
            layout,
            pin_memory=False,
            device_capacity_tokens=page_size,
            start_layer=0,
            end_layer=layers,
            host_token_capacity=pages * page_size,
        )
    finally:
        base.HICACHE_HOST_MEMORY_RESERVE_BYTES = reserve


TAKE_SECONDS = 60.0
"""Bound on the wait for pages that other calls hold."""


class PagePool:
    """A pool whose page is `nbytes` bytes (even), and who holds which of its pages."""

    def __init__(self, nbytes: int, layout: str) -> None:
        import torch

        if nbytes % 2 or nbytes <= 0:
            raise ValueError(f"a page of {nbytes} bytes has no two halves")
        self.nbytes = nbytes
        self.pool = make_pool(
            layout=layout, dtype=torch.uint8, layers=1, heads=1, head_dim=nbytes // 2, page_size=1, pages=POOL_PAGES
        )
        self._bytes = self.pool.kv_buffer.numpy().reshape(2, POOL_PAGES, nbytes // 2)
        self._free = list(range(POOL_PAGES))
        self._released = threading.Condition()

    def take(self, count: int) -> list[int]:
        """Page numbers, held until `give_back`. TimeoutError where other calls hold too many for too long."""
        with self._released:
            if not self._released.wait_for(lambda: len(self._free) >= count, TAKE_SECONDS):
                raise TimeoutError(f"calls of the judged class hold the host pool since {TAKE_SECONDS:g} s")
            taken, self._free = self._free[:count], self._free[count:]
            return taken

    def give_back(self, taken: Sequence[int]) -> None:
        """Pages whose call has returned."""
        with self._released:
            self._free.extend(taken)
            self._released.notify_all()

    def write(self, page: int, data: bytes | bytearray) -> None:
        """Put a whole page."""
        view = memoryview(data)
        half = self.nbytes // 2
        for side in (0, 1):
            memoryview(self._bytes[side, page])[:] = view[side * half : (side + 1) * half]

    def read(self, page: int, data: bytearray) -> None:
        """A whole page into `data`."""
        half = self.nbytes // 2
        for side in (0, 1):
            data[side * half : (side + 1) * half] = memoryview(self._bytes[side, page])

    def indices(self, pages: Sequence[int]) -> Any:
        """Token indices of pages, int64 on the CPU, as SGLang passes them (a page is one token here)."""
        import torch

        return torch.tensor(list(pages), dtype=torch.int64)
