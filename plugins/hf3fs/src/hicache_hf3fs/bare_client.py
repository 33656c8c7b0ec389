"""What a sealed session is compared with in `make bench-backends`: preadv and pwritev on the same layout of file.

One sparse file of slots of the same size, one system call a page, a dict in place of the index. A slot whose page was
removed is used again, as the store does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hicache_core.plugin.bare_clients import BareCase, PageMemory
from hicache_hf3fs.index.interface import SLOT_UNIT


class SlotFileClient:
    """Pages in the slots of one file."""

    def __init__(self, options: Mapping[str, Any], memory: PageMemory) -> None:
        root = Path(options["root"])
        root.mkdir(mode=0o700, exist_ok=True)
        self._fd = os.open(root / "bare", os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(self._fd, 1 << 30)
        self._memory = memory
        self._stride = memory.shape[1] + SLOT_UNIT
        self._slots: dict[str, int] = {}
        self._free: list[int] = []

    def put(self, keys: Sequence[str], slots: Sequence[int]) -> None:
        """Write each page."""
        for key, slot in zip(keys, slots, strict=True):
            at = self._free.pop() if self._free else len(self._slots)
            if os.pwritev(self._fd, [self._memory[slot]], at * self._stride) != self._memory.shape[1]:
                raise OSError("a short write")
            self._slots[key] = at

    def get(self, keys: Sequence[str], slots: Sequence[int]) -> None:
        """Read each page."""
        for key, slot in zip(keys, slots, strict=True):
            if os.preadv(self._fd, [self._memory[slot]], self._slots[key] * self._stride) != self._memory.shape[1]:
                raise OSError("a short read")

    def remove(self, keys: Sequence[str]) -> None:
        """Their slots are free."""
        self._free += sorted((self._slots.pop(key) for key in keys), reverse=True)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


@contextmanager
def store_in(directory: Path, nbytes: int) -> Iterator[Mapping[str, Any]]:
    """A store in an empty directory."""
    yield {"root": str(directory / "store")}


CASES = (BareCase("page cache", store_in, SlotFileClient, at_least=0.75, aim=0.85, apart=True),)
