"""A batch of pages on its way through the guard, and how an operation is cut into batches and spread on workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np

from hicache_core.errors import MisuseError
from hicache_core.types import BATCH_PAGES, Page, PoolName, Slots

SPLIT_BYTES = 4 << 20
"""A batch is spread over workers only if each slice has that much, unless the store is latency-bound."""
SPLIT_PAGE_BYTES = 128 << 10
"""… and only if its pages are that large: two Python threads that move small pages wait for the GIL at every system
call. The measurements are in docs/adr/0005-spread-only-large-pages.md."""

_shape = attrgetter("format", "ndim", "c_contiguous", "readonly")
_LENT = frozenset({("B", 1, True, False)})
_SHOWN = frozenset({("B", 1, True, True)})
"""What byte buffers look like that need no cast: writable, and read-only."""

Buffers: TypeAlias = Sequence[Any]
"""One page as a caller gives it: objects with the buffer protocol, in region order."""


@dataclass(slots=True)
class PageBatch:
    """Pages of one or more pools in a row. pages: their regions, without seals. slots: where they lie in a
    registered pool, for v1 and v2. pools: name and number of pages of each pool in a row, for v2. owner: whoever
    keeps the memory alive."""

    keys: Sequence[str]
    pages: Sequence[Page]
    sizes: Sequence[int]
    slots: Slots | None = None
    pools: Sequence[tuple[PoolName, int]] = ()
    owner: object = None

    def __len__(self) -> int:
        return len(self.keys)

    def cut(self, lo: int, hi: int) -> PageBatch:
        """Pages lo … hi - 1."""
        if lo == 0 and hi == len(self.keys):
            return self
        slots = None if self.slots is None else self.slots[lo:hi]
        pools, start = [], 0
        for name, count in self.pools:
            a, b = max(lo, start), min(hi, start + count)
            if a < b:
                pools.append((name, b - a))
            start += count
        return PageBatch(self.keys[lo:hi], self.pages[lo:hi], self.sizes[lo:hi], slots, pools, self.owner)

    def take(self, indices: Sequence[int]) -> PageBatch:
        """Some pages, in this ascending order."""
        pools, start = [], 0
        for name, count in self.pools:
            number = sum(start <= i < start + count for i in indices)
            if number:
                pools.append((name, number))
            start += count
        return PageBatch(
            [self.keys[i] for i in indices],
            [self.pages[i] for i in indices],
            [self.sizes[i] for i in indices],
            None if self.slots is None else self.slots[np.asarray(indices, np.int64)],
            pools,
            self.owner,
        )


def as_pages(pages: Sequence[Buffers], keys: int, *, writable: bool) -> tuple[Sequence[Page], list[int]]:
    """The pages as byte memoryviews, and their sizes. Raises MisuseError for what cannot be lent."""
    if len(pages) != keys:
        raise MisuseError(f"{keys} hashes, but {len(pages)} pages")
    flat = [buffer for page in pages for buffer in page]
    if set(map(type, flat)) <= {memoryview} and set(map(_shape, flat)) <= (_LENT if writable else _LENT | _SHOWN):
        sizes = [len(page[0]) if len(page) == 1 else sum(map(len, page)) for page in pages]
        return pages, sizes
    cast = [[_as_bytes(buffer, writable) for buffer in page] for page in pages]
    return cast, [sum(map(len, page)) for page in cast]


def _as_bytes(buffer: object, writable: bool) -> memoryview:
    try:
        view = memoryview(buffer)  # type: ignore[arg-type]
        view = view.cast("B") if view.ndim != 1 or view.format != "B" else view
    except (TypeError, ValueError) as error:
        raise MisuseError(f"a page holds a {type(buffer).__name__} that is no contiguous buffer: {error}") from error
    if not view.c_contiguous:
        raise MisuseError("a page holds a buffer that is not contiguous")
    if writable and view.readonly:
        raise MisuseError("a page to be read into has a read-only buffer")
    return view


@dataclass(frozen=True, slots=True)
class CutRule:
    """How much one call may carry. call_bytes: seal included. stage_bytes: of staged batches; None: not staged."""

    stride: int
    call_bytes: int | None = None
    stage_bytes: int | None = None

    def cuts(self, sizes: Sequence[int], staged_sizes: Sequence[int] | None = None) -> list[tuple[int, int]]:
        """Ranges of at most 128 pages each, one page at least; where `call_bytes` cuts, about equally large."""
        total = len(sizes)
        if self.call_bytes is None and self.stage_bytes is None:
            return [(lo, min(lo + BATCH_PAGES, total)) for lo in range(0, total, BATCH_PAGES)]
        most = None
        if self.call_bytes is not None:
            nbytes = sum(sizes) + total * self.stride
            calls = max(1, -(-nbytes // max(1, self.call_bytes)))
            most = min(self.call_bytes, -(-nbytes // calls) + max(sizes, default=0) // 2)
        ranges, lo, carried, staged = [], 0, 0, 0
        for i, size in enumerate(sizes):
            own, own_staged = size + self.stride, staged_sizes[i] if staged_sizes else 0
            full = i - lo == BATCH_PAGES
            full |= most is not None and carried + own > most
            full |= self.stage_bytes is not None and staged + own_staged > self.stage_bytes
            if full and i > lo:
                ranges.append((lo, i))
                lo, carried, staged = i, 0, 0
            carried += own
            staged += own_staged
        if lo < total:
            ranges.append((lo, total))
        return ranges


def slices(sizes: Sequence[int], workers: int, parallelism: int, *, spread: bool = True) -> list[tuple[int, int]]:
    """Ranges of pages, one for each worker that is to take part.

    spread: whether large pages are to be spread where the store is not bound by latency.
    """
    total = len(sizes)
    nbytes = sum(sizes)
    large = nbytes >= SPLIT_PAGE_BYTES * total
    parts = min(workers, total, nbytes // SPLIT_BYTES) if spread and large else 1
    if parallelism > 1:
        parts = max(parts, min(workers, parallelism, total))
    if parts <= 1:
        return [(0, total)]
    return [(total * i // parts, total * (i + 1) // parts) for i in range(parts)]
