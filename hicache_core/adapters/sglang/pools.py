"""SGLang's host pools as this library's `HostPoolView`: where the bytes of a page slot lie.

SGLang tells addresses page by page (`get_page_buffer_meta`). They are asked for once, for a few pages, when a pool
is attached; as long as they turn out to be base + slot * stride, no call on the data path goes through its Python
loops again. Pools that move their pages (one arena shared by several) are asked every time. Pools that can only hand
out flat copies of pages have no view; `FlatPages` reads and writes those.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from hicache_core.pools.slots import expand
from hicache_core.types import PoolName, Slots

Int64s = npt.NDArray[np.int64]

_PROBED = 16
"""Pages, spread over the pool, whose addresses are compared with what the first two foretell."""


class NoRegions(Exception):
    """The pool cannot say where its pages lie; why, in its own words."""


class EnginePool:
    """One of SGLang's host pools. Slots are page slots; a page of slot s begins at token s * page_size.

    Raises NoRegions where the pool has no addresses to give.
    """

    def __init__(self, name: PoolName, pool: Any) -> None:
        self.name = name
        self.layout = str(getattr(pool, "layout", "unknown"))
        self.page_size = pool_page_size(pool)
        self.num_pages = pool_pages(pool)
        self.owner: object = (pool, _tensors(pool))
        self._pool = pool
        first, sizes = self._ask(np.zeros(1, np.int64))
        self.sizes: Int64s = sizes[0]
        self._base, self._stride = self._affine(first[0])
        order = None if self._stride is None else flat_order(pool, self._base, self.sizes)
        self.flat = order is not None
        """Whether the regions in their order are the bytes of the pool's flat page, so that both paths agree."""
        if order is not None and self._stride is not None:
            self._base, self._stride, self.sizes = self._base[order], self._stride[order], self.sizes[order]
        self._region_sizes: list[int] = self.sizes.tolist()
        self._window, self._start = self._map()

    @property
    def page_nbytes(self) -> int:
        """Bytes of a page."""
        return int(self.sizes.sum())

    @property
    def fixed(self) -> bool:
        """Whether a page's address follows from its slot for as long as the pool lives."""
        return self._stride is not None

    def regions(self, slots: Slots) -> tuple[Int64s, Int64s]:
        """Addresses and sizes in bytes: (ptrs int64[n, r], sizes int64[n, r])."""
        self._check(slots)
        if self._stride is None:
            return self._ask(slots)
        ptrs = self._base + slots[:, None] * self._stride
        return ptrs, np.broadcast_to(self.sizes, ptrs.shape)

    def pages(self, slots: Slots) -> list[list[memoryview]]:
        """The same regions as writable byte buffers: n lists of r."""
        ptrs, sizes = self.regions(slots)
        if self._window is None:
            return [
                [_memory(ptr, size) for ptr, size in zip(page, lengths, strict=True)]
                for page, lengths in zip(ptrs.tolist(), sizes.tolist(), strict=True)
            ]
        view, lengths = self._window, self._region_sizes
        starts = (ptrs - self._start).tolist()
        if len(lengths) == 1:
            size = lengths[0]
            return [[view[at : at + size]] for (at,) in starts]
        return [[view[at : at + size] for at, size in zip(page, lengths, strict=True)] for page in starts]

    def _ask(self, slots: Slots) -> tuple[Int64s, Int64s]:
        tokens = torch.from_numpy(expand(slots, self.page_size))
        try:
            answer = self._pool.get_page_buffer_meta(tokens)
            ptrs, sizes = (np.asarray(part, np.int64) for part in answer)
        except (AttributeError, NotImplementedError, AssertionError, ValueError, TypeError, RuntimeError) as error:
            raise NoRegions(f"{type(error).__name__}: {error}") from error
        if not len(ptrs) or len(ptrs) != len(sizes) or len(ptrs) % len(slots):
            raise NoRegions(f"{len(ptrs)} addresses and {len(sizes)} sizes for {len(slots)} pages")
        return ptrs.reshape(len(slots), -1), sizes.reshape(len(slots), -1)

    def _affine(self, first: Int64s) -> tuple[Int64s, Int64s | None]:
        """Base and stride per region; no stride where an address does not follow from its slot."""
        if getattr(self._pool, "shared_allocation_domain", None) is not None or self.num_pages < 2:
            return first, None
        slots = np.unique(np.linspace(0, self.num_pages - 1, _PROBED).astype(np.int64))
        slots = np.unique(np.append(slots, 1))
        ptrs, sizes = self._ask(slots)
        if ptrs.shape[1] != len(first) or (sizes != self.sizes).any():
            return first, None
        stride = ptrs[1] - ptrs[0]
        expected = first + slots[:, None] * stride
        return first, stride if (ptrs == expected).all() and (stride >= self.sizes).all() else None

    def _map(self) -> tuple[memoryview | None, int]:
        """One buffer from the first byte of the pool to the last. What lies between its tensors is never touched."""
        if self._stride is None:
            return None, 0
        ends = self._base + self._stride * (self.num_pages - 1) + self.sizes
        start, end = int(self._base.min()), int(ends.max())
        return _memory(start, end - start), start

    def _check(self, slots: Slots) -> None:
        if slots.size and (int(slots.min()) < 0 or int(slots.max()) >= self.num_pages):
            raise ValueError(f"slot out of range: host pool {self.name} has {self.num_pages} pages")


class FlatPages:
    """Pages of a pool that only hands out flat copies (`get_data_page`, `set_from_flat_data_page`)."""

    def __init__(self, name: PoolName, pool: Any) -> None:
        self.name = name
        self.page_size = pool_page_size(pool)
        self._pool = pool
        self.page_nbytes = as_bytes(self.empty()).nbytes

    def empty(self) -> torch.Tensor:
        """Memory for a flat page, of SGLang's own making."""
        page: torch.Tensor = self._pool.get_dummy_flat_data_page()
        return page

    def read(self, slot: int) -> torch.Tensor:
        """A flat copy of the page."""
        page: torch.Tensor = self._pool.get_data_page(slot * self.page_size, flat=True)
        return page

    def write(self, slot: int, page: torch.Tensor) -> None:
        """Put a flat page in its place."""
        self._pool.set_from_flat_data_page(slot * self.page_size, page)


def has_bytes(pool: Any) -> bool:
    """False for a logical pool, which only hands out slots and keeps no KV."""
    return not (hasattr(pool, "kv_buffer") and pool.kv_buffer is None)


def pool_page_size(pool: Any) -> int:
    """Tokens per page, of the engine's pages."""
    return int(getattr(pool, "page_size", 1) or 1)


def pool_pages(pool: Any) -> int:
    """Number of page slots."""
    return int(pool.size) // pool_page_size(pool)


def as_bytes(tensor: Any) -> memoryview:
    """A contiguous CPU tensor as one byte buffer. Raises ValueError for any other: a copy would be filled in vain."""
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"a page is a tensor, got {type(tensor).__name__}")
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise ValueError(f"a page must be a contiguous tensor in host memory, got {tensor.device} {tensor.stride()}")
    flat: npt.NDArray[np.uint8] = tensor.detach().view(-1).view(torch.uint8).numpy()
    return flat.data


def flat_order(pool: Any, base: Int64s, sizes: Int64s) -> npt.NDArray[np.intp] | None:
    """The order in which the regions of a page stand in its flat copy; None where the pool does not tell.

    Read off the strides of the view that the pool flattens: the runs of bytes that lie together are the regions.
    """
    try:
        view = pool.get_data_page(0, flat=False)
    except (AttributeError, NotImplementedError, ValueError, TypeError, RuntimeError):
        return None
    if not isinstance(view, torch.Tensor) or view.device.type != "cpu":
        return None
    starts, size = _runs(view)
    if len(starts) != len(base) or (sizes != size).any():
        return None
    order = np.argsort(base)[np.argsort(np.argsort(starts))]
    return order if (base[order] == starts).all() else None


def _runs(view: torch.Tensor) -> tuple[Int64s, int]:
    """Addresses of the runs of adjacent bytes in row-major order, and the size of each."""
    item, run = view.element_size(), view.element_size()
    outer = [(n, s) for n, s in zip(view.shape, view.stride(), strict=True) if n != 1]
    while outer and outer[-1][1] * item == run:
        run *= outer.pop()[0]
    starts = np.full(1, view.data_ptr(), np.int64)
    for count, stride in outer:
        starts = (starts[:, None] + np.arange(count, dtype=np.int64) * stride * item).reshape(-1)
    return starts, run


def _memory(address: int, nbytes: int) -> memoryview:
    return memoryview((ctypes.c_ubyte * nbytes).from_address(address)).cast("B")


def _tensors(pool: Any) -> Sequence[torch.Tensor]:
    """The pool's own memory as bytes, each allocation once: it stays while a call is under way, whatever the pool
    lets go of, and a store that registers memory sees no view of a view."""
    found: dict[int, torch.Tensor] = {}
    for value in vars(pool).values() if hasattr(pool, "__dict__") else ():
        for part in value if isinstance(value, list | tuple) else (value,):
            if isinstance(part, torch.Tensor) and part.device.type == "cpu" and part.numel():
                storage = part.untyped_storage()
                found.setdefault(storage.data_ptr(), torch.empty(0, dtype=torch.uint8).set_(storage))
    return tuple(found.values())
