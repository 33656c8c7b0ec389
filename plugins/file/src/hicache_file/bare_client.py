"""What backend `file` is compared with in `make bench-backends`: one flat directory and bare system calls."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hicache_core.plugin.bare_clients import BareCase, PageMemory


class SystemCalls:
    """One file a page: open, pwritev or preadv, close. Nothing is published atomically, nothing is checked."""

    def __init__(self, options: Mapping[str, Any], memory: PageMemory) -> None:
        self._directory = f"{options['root']}-bare"
        os.makedirs(self._directory, exist_ok=True)
        self._memory = memory

    def put(self, keys: Sequence[str], slots: Sequence[int]) -> None:
        """Write the pages. Raises OSError, also for a short write."""
        for key, slot in zip(keys, slots, strict=True):
            fd = os.open(self._path(key), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                self._complete(os.pwritev(fd, [self._memory[slot]], 0))
            finally:
                os.close(fd)

    def get(self, keys: Sequence[str], slots: Sequence[int]) -> None:
        """Read the pages. Raises OSError, also for a short file."""
        for key, slot in zip(keys, slots, strict=True):
            fd = os.open(self._path(key), os.O_RDONLY)
            try:
                self._complete(os.preadv(fd, [self._memory[slot]], 0))
            finally:
                os.close(fd)

    def remove(self, keys: Sequence[str]) -> None:
        """Remove the files."""
        for key in keys:
            os.unlink(self._path(key))

    def close(self) -> None:
        """Nothing stays open."""

    def _path(self, key: str) -> str:
        return f"{self._directory}/{key.rpartition('/')[2]}"

    def _complete(self, moved: int) -> None:
        if moved != self._memory.shape[1]:
            raise OSError(f"moved {moved:,} bytes of a page of {self._memory.shape[1]:,}")


@contextmanager
def directory_of(directory: Path, nbytes: int) -> Iterator[Mapping[str, Any]]:
    """A root in the directory given."""
    yield {"root": str(directory / "store")}


cases = (BareCase("", directory_of, SystemCalls, at_least=0.5),)
