"""Pages as the SDK wants them: for each object the addresses and lengths of its parts, the seal first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hicache_core.storage.lent_memory import address_of
from hicache_core.types import HostPoolView, Page, Slots


@dataclass(slots=True)
class Objects:
    """ptrs, sizes: one list per object, of equal lengths. totals: bytes of each object."""

    ptrs: list[list[int]]
    sizes: list[list[int]]
    totals: list[int]

    def take(self, indices: Sequence[int]) -> Objects:
        """Some of them."""
        return Objects(
            [self.ptrs[i] for i in indices], [self.sizes[i] for i in indices], [self.totals[i] for i in indices]
        )

    def extend(self, others: Objects) -> None:
        """Put others behind them."""
        self.ptrs += others.ptrs
        self.sizes += others.sizes
        self.totals += others.totals


def of_pages(pages: Sequence[Page]) -> Objects:
    """Of buffers; empty ones are left out, since the SDK wants every part to have a byte."""
    sizes = [[len(buffer) for buffer in page if len(buffer)] for page in pages]
    ptrs = [[address_of(buffer) for buffer in page if len(buffer)] for page in pages]
    return Objects(ptrs, sizes, list(map(sum, sizes)))


def of_pool(view: HostPoolView, slots: Slots, seals: Sequence[memoryview] | None) -> Objects:
    """Of page slots of a registered pool, with a seal in front of each."""
    ptrs, sizes = view.regions(slots)
    count = len(slots)
    if not seals:
        rows = ptrs.tolist()
        front: list[int] = []
    else:
        at = np.fromiter(map(address_of, seals), np.int64, count)
        rows = np.concatenate([at[:, None], ptrs], axis=1).tolist()
        front = [len(seals[0])]
    if count and sizes.strides[0] == 0 and (not seals or len(set(map(len, seals))) == 1):
        row = front + sizes[0].tolist()  # all pages have one shape, as they nearly always do
        return Objects(rows, [row] * count, [sum(row)] * count)
    lengths = sizes.tolist() if not seals else [[len(s), *r] for s, r in zip(seals, sizes.tolist(), strict=True)]
    return Objects(rows, lengths, list(map(sum, lengths)))
