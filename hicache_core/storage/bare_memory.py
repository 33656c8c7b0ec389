"""What backend `memory` is compared with in `make bench-backends`: a dict of bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from hicache_core.plugin.bare_clients import BareCase, PageMemory


class DictClient:
    """Pages as bytes objects in a dict."""

    def __init__(self, options: Mapping[str, Any], memory: PageMemory) -> None:
        self._memory = memory
        self._pages: dict[str, bytes] = {}

    def put(self, keys: Sequence[str], slots: Sequence[int]) -> None:
        """Copy each page out."""
        for key, slot in zip(keys, slots, strict=True):
            self._pages[key] = self._memory[slot].tobytes()

    def get(self, keys: Sequence[str], slots: Sequence[int]) -> None:
        """Copy each page in."""
        for key, slot in zip(keys, slots, strict=True):
            self._memory[slot] = np.frombuffer(self._pages[key], np.uint8)

    def remove(self, keys: Sequence[str]) -> None:
        """Forget some."""
        for key in keys:
            del self._pages[key]

    def close(self) -> None:
        """Forget the pages."""
        self._pages.clear()


@contextmanager
def no_store(directory: Path, nbytes: int) -> Iterator[Mapping[str, Any]]:
    """`memory` needs nothing: each opened backend has a store of its own."""
    yield {}


CASES = (BareCase("", no_store, DictClient, at_least=0.0),)
"""Nothing is asked: a dict on one thread has no waiting beside which a page could be sealed."""
