"""A pool of pages where attention reads them (L1): per layer one array of K and one of V, and their slots."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from hicache_core.errors import MisuseError
from hicache_core.pools.pages import Bytes, PagePool
from hicache_core.types import Slots


class DevicePool(PagePool, ABC):
    """Per layer arrays [num_pages, page_size, head_num, head_dim]; MLA: one array [num_pages, page_size, 1, dim].

    `read_page` and `write_page` speak one byte order, whatever the host's layout: that of page_first, K's
    [token, layer, head, dim] and then V's (MLA: one [token, layer, 1, dim]). Slots are page slots.
    """

    tier: ClassVar[str] = "device"

    @abstractmethod
    def k(self, layer: int) -> Any:
        """K of one layer, or the MLA vectors: [num_pages, page_size, head_num, head_dim]."""

    @abstractmethod
    def v(self, layer: int) -> Any:
        """V of one layer: [num_pages, page_size, head_num, v_head_dim]; MLA: the latent part, a view of k(layer)."""

    @abstractmethod
    def byte_arrays(self) -> tuple[Bytes, ...] | None:
        """K and V (MLA: one) as uint8[layer, num_pages, page_size, head, row], views; None where the CPU cannot
        address the device's memory."""

    @abstractmethod
    def read_pages(self, slots: Slots) -> Bytes:
        """Copies of pages: uint8[n, page_nbytes] in the order of page_first."""

    @abstractmethod
    def write_pages(self, slots: Slots, pages: Bytes) -> None:
        """Write pages from uint8[n, page_nbytes] in the order of page_first."""

    def read_page(self, slot: int) -> bytes:
        """The page's bytes in the order of page_first."""
        return self.read_pages(np.array([slot], dtype=np.int64)).tobytes()

    def write_page(self, slot: int, page: bytes | memoryview | Bytes) -> None:
        """Write the page from bytes in the order of page_first."""
        self.write_pages(np.array([slot], dtype=np.int64), np.frombuffer(page, dtype=np.uint8)[None])

    def _check(self, slots: Slots) -> None:
        if slots.size and (int(slots.min()) < 0 or int(slots.max()) >= self.num_pages):
            raise MisuseError(f"slot out of range: the device pool has {self.num_pages} pages")

    def _check_pages(self, slots: Slots, pages: Bytes) -> None:
        self._check(slots)
        if pages.shape != (slots.size, self.page_nbytes):
            raise MisuseError(f"{slots.size} pages of {self.page_nbytes} bytes are wanted, not shape {pages.shape}")


def gather_pages(arrays: tuple[Bytes, ...], slots: Slots, page_nbytes: int) -> Bytes:
    """Pages of device arrays in the order of page_first: uint8[n, page_nbytes]."""
    pages = np.empty((slots.size, page_nbytes), dtype=np.uint8)
    for array, part in _parts(arrays, pages):
        if slots.size == 1:
            part[0] = array[:, slots[0]].swapaxes(0, 1)
        else:
            part[:] = array.take(slots, axis=1).transpose(1, 2, 0, 3, 4)
    return pages


def scatter_pages(arrays: tuple[Bytes, ...], slots: Slots, pages: Bytes) -> None:
    """The inverse of gather_pages."""
    for array, part in _parts(arrays, pages):
        if slots.size == 1:
            array[:, slots[0]] = part[0].swapaxes(0, 1)
        else:
            array[:, slots] = part.transpose(2, 0, 1, 3, 4)


def _parts(arrays: tuple[Bytes, ...], pages: Bytes) -> Iterator[tuple[Any, Any]]:
    """Each device array [layer, page, token, head, word] with its share of the pages [n, token, layer, head, word].

    Words are as long as all offsets allow, at most 8 bytes: numpy moves them faster than bytes.
    """
    start = 0
    for array in arrays:
        layers, _, tokens, heads, row = array.shape
        end = start + layers * tokens * heads * row
        word = np.dtype(f"u{math.gcd(8, row, start, pages.shape[1], *array.strides[:4])}")
        share = pages[:, start:end].view(word).reshape(pages.shape[0], tokens, layers, heads, row // word.itemsize)
        yield array.view(word), share
        start = end
