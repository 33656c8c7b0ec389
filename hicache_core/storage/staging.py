"""Session memory through which pages go that cannot go straight: transformed ones, and pools that are only lent."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from hicache_core.storage.seals import aligned_memory
from hicache_core.types import Page

HOLDS_THE_GIL_BELOW = 128 << 10
"""A memoryview assignment is faster below, numpy.copyto (which releases the GIL) from there on."""


def copy_bytes(dst: memoryview, src: memoryview) -> None:
    """Copy equally long byte buffers."""
    if dst.nbytes < HOLDS_THE_GIL_BELOW:
        dst[:] = src
    else:
        np.copyto(np.frombuffer(dst, np.uint8), np.frombuffer(src, np.uint8))


def copy_page(dst: Page, src: Page) -> None:
    """Copy a page into one of the same total size, whose buffers may be cut elsewhere."""
    if len(dst) == len(src) == 1:
        copy_bytes(dst[0], src[0])
        return
    sources = iter(src)
    source, at = next(sources, memoryview(b"")), 0
    for target in dst:
        filled = 0
        while filled < target.nbytes:
            while at == source.nbytes:
                source, at = next(sources), 0
            n = min(target.nbytes - filled, source.nbytes - at)
            copy_bytes(target[filled : filled + n], source[at : at + n])
            filled, at = filled + n, at + n


class StageBlock:
    """Memory of one running call. `take` gives aligned pieces from the front."""

    def __init__(self, alignment: int) -> None:
        self._alignment = max(64, alignment)
        self.memory = memoryview(b"")
        self._used = 0

    def padded(self, nbytes: int) -> int:
        """What a piece of that size takes."""
        return -(-nbytes // self._alignment) * self._alignment

    def reset(self) -> None:
        """All pieces are free again."""
        self._used = 0

    def take(self, nbytes: int) -> memoryview:
        """A piece."""
        start = self._used
        self._used += self.padded(nbytes)
        return self.memory[start : start + nbytes]


class Staging:
    """Blocks of at most max(one page, stage_bytes) each: one for every thread that may be in the store."""

    def __init__(
        self,
        blocks: int,
        stage_bytes: int,
        alignment: int,
        register: Callable[[memoryview], None],
        unregister: Callable[[memoryview], None],
    ) -> None:
        self.stage_bytes = stage_bytes
        self._free = deque(StageBlock(alignment) for _ in range(blocks))
        self._all = list(self._free)
        self._register, self._unregister = register, unregister

    def borrow(self, nbytes: int) -> StageBlock:
        """A block with room for `nbytes`; registers its memory where the store asks for that."""
        block = self._free.pop()  # the one used last: its memory is there already
        wanted = max(nbytes, self.stage_bytes)
        if block.memory.nbytes < wanted:
            try:
                if block.memory.nbytes:
                    self._unregister(block.memory)
                block.memory = memoryview(b"")
                memory = aligned_memory(wanted)
                self._register(memory)
                block.memory = memory
            except BaseException:
                self._free.append(block)
                raise
        return block

    def give_back(self, block: StageBlock) -> None:
        """The call that held it has returned."""
        block.reset()
        self._free.append(block)

    def padded(self, nbytes: int) -> int:
        """What a piece of that size takes."""
        return self._all[0].padded(nbytes)

    @property
    def regions(self) -> list[memoryview]:
        """Memory that was registered."""
        return [block.memory for block in self._all if block.memory.nbytes]

    @property
    def nbytes(self) -> int:
        """Memory held now."""
        return sum(block.memory.nbytes for block in self._all)


def shadow(block: StageBlock, pages: Sequence[Page]) -> list[list[memoryview]]:
    """Session memory in the shape of these pages."""
    return [[block.take(buffer.nbytes) for buffer in page] for page in pages]
