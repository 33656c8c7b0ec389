"""Memory of the session's own beside the pools: seals, and staging for pages that cannot go straight.

Pools know nothing of seals. Each running call borrows one block of its direction and gives it back when it has
really returned, so (workers + 2) blocks suffice: as many threads of a direction can be inside the store at once.
"""

from __future__ import annotations

import mmap
from collections import deque

from hicache_core.types import BATCH_PAGES


def aligned_memory(nbytes: int) -> memoryview:
    """Zeroed anonymous memory, aligned to the system's page."""
    return memoryview(mmap.mmap(-1, max(1, nbytes)))[:nbytes]


class SealBlock:
    """One slot of `stride` bytes for each page of a call."""

    __slots__ = ("slots",)

    def __init__(self, memory: memoryview, stride: int) -> None:
        self.slots = [memory[i * stride : (i + 1) * stride] for i in range(BATCH_PAGES)]


class SealRing:
    """`blocks` seal blocks in one region of memory, which a store may register."""

    def __init__(self, blocks: int, stride: int) -> None:
        size = BATCH_PAGES * stride
        self.memory = aligned_memory(blocks * size)
        self._free = deque(SealBlock(self.memory[i * size : (i + 1) * size], stride) for i in range(blocks))
        self._blocks = blocks

    @property
    def borrowed(self) -> int:
        """Blocks that a call holds."""
        return self._blocks - len(self._free)

    def borrow(self) -> SealBlock:
        """A block. There is one for every thread that may be in the store, so this never waits."""
        return self._free.popleft()

    def give_back(self, block: SealBlock) -> None:
        """The call that held it has returned."""
        self._free.append(block)
