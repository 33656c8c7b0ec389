"""Memory that is lent to a store's client: where it lies, who lent it, and that nothing is registered twice."""

from __future__ import annotations

import ctypes
import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from hicache_core.errors import MisuseError
from hicache_core.types import Buffer, HostPoolView

_ONE_BYTE = ctypes.c_char

Extent: TypeAlias = "tuple[int, int]"
"""Address and length in bytes."""


def address_of(buffer: Buffer) -> int:
    """Where a byte buffer of at least one byte begins. Raises ValueError for one that was released."""
    if not buffer.readonly:
        return ctypes.addressof(_ONE_BYTE.from_buffer(buffer))  # a tenth of what numpy takes for it
    address: int = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]
    return address


def extents_of(view: HostPoolView) -> list[Extent]:
    """The memory under a host pool; empty where it does not say, or says what its pages deny.

    The core's pools have it as `buffer`; of others the owner is looked at: a buffer, a tensor, or several of them.
    """
    for holder in (getattr(view, "buffer", None), view.owner):
        found = sorted(_memories(holder))
        if found and _holds(found, view):
            return found
    return []


def _memories(holder: Any) -> Iterator[Extent]:
    if isinstance(holder, list | tuple):
        for part in holder:
            yield from _memories(part)
    elif hasattr(holder, "data_ptr") and hasattr(holder, "nbytes"):
        yield int(holder.data_ptr()), int(holder.nbytes)
    else:
        try:
            buffer = memoryview(holder)
        except TypeError:
            return
        if buffer.nbytes and buffer.c_contiguous:
            yield address_of(buffer.cast("B")), buffer.nbytes


def _holds(extents: Sequence[Extent], view: HostPoolView) -> bool:
    ptrs, sizes = view.regions(np.zeros(1, np.int64))
    return all(
        any(start <= ptr and ptr + size <= start + length for start, length in extents)
        for ptr, size in zip(ptrs[0].tolist(), sizes[0].tolist(), strict=True)
    )


@dataclass(slots=True)
class _Lent:
    nbytes: int
    holders: list[str]


class LentMemory:
    """What is registered now. Pools may share one extent (it is registered once); everything else overlaps nothing.

    Thread-safe: changes under a lock, `covers` reads a snapshot.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lent: dict[int, _Lent] = {}
        self._spans: tuple[list[int], list[int]] = ([], [])

    def add(self, extent: Extent, holder: str, *, shareable: bool) -> bool:
        """Take note; True where the client is to be told. MisuseError where some of it is registered already."""
        start, nbytes = extent
        with self._lock:
            same = self._lent.get(start)
            if same is not None and same.nbytes == nbytes and shareable and holder not in same.holders:
                same.holders.append(holder)
                return False
            for at, other in self._lent.items():
                if at < start + nbytes and start < at + other.nbytes:
                    raise MisuseError(
                        f"{holder}: {nbytes} bytes at {start:#x} overlap {other.nbytes} bytes at {at:#x}, which are "
                        f"registered already as {', '.join(other.holders)}; unregister them first"
                    )
            self._lent[start] = _Lent(nbytes, [holder])
            self._refresh()
            return True

    def remove(self, start: int, holder: str) -> bool:
        """Forget it; True where the client is to be told. Raises MisuseError where it is not registered."""
        with self._lock:
            lent = self._lent.get(start)
            if lent is None or holder not in lent.holders:
                raise MisuseError(f"{holder} at {start:#x} is not registered")
            lent.holders.remove(holder)
            if lent.holders:
                return False
            del self._lent[start]
            self._refresh()
            return True

    def all(self) -> list[Extent]:
        """Everything that is registered."""
        with self._lock:
            return [(start, lent.nbytes) for start, lent in self._lent.items()]

    def covers(self, start: int, nbytes: int) -> bool:
        """Whether all of it lies in one registered extent."""
        starts, ends = self._spans
        at = bisect_right(starts, start) - 1
        return at >= 0 and start + nbytes <= ends[at]

    def _refresh(self) -> None:
        spans = sorted((start, start + lent.nbytes) for start, lent in self._lent.items())
        self._spans = [start for start, _ in spans], [end for _, end in spans]
