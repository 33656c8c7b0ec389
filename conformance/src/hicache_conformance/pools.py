"""Host pools for cases: the core's own, in memory that is watched, of every kind and layout."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hicache_conformance.harness import Harness
from hicache_conformance.material import CANARY, POISON, page_bytes
from hicache_conformance.verdict import Skipped, check, check_bytes
from hicache_core.pools.geometry import KVGeometry
from hicache_core.pools.host import HostPool, make_host_pool
from hicache_core.pools.layouts import LAYOUTS, layout_named, pool_nbytes
from hicache_core.types import PoolName

KINDS = ("mha", "asymmetric", "mla")
"""K and V alike; K and V of different length; one latent vector."""

_GUARD = 4096
_TOKENS, _LAYERS, _HEADS, _ITEM = 16, 3, 2, 2


@dataclass(frozen=True)
class Form:
    """A kind of pool in a layout."""

    kind: str
    layout: str

    def __str__(self) -> str:
        return f"{self.kind} {self.layout}"


def forms(layouts: Sequence[str] | None) -> list[Form]:
    """Every kind in every layout that it can have, of those the store takes (None: all)."""
    return [
        Form(kind, name)
        for kind in KINDS
        for name, layout in LAYOUTS.items()
        if ("mla" if kind == "mla" else "mha") in layout.kinds and (layouts is None or name in layouts)
    ]


def geometry_of(kind: str, alignment: int, *, layers: int = _LAYERS) -> KVGeometry:
    """A small geometry of this kind, every region of it a multiple of the alignment."""
    heads = 1 if kind == "mla" else _HEADS
    run = _TOKENS * heads * _ITEM
    unit = max(8, alignment // math.gcd(alignment, run))
    if kind == "mla":
        return KVGeometry("mla", layers, 1, 3 * unit, page_size=_TOKENS, rope_dim=unit)
    if kind == "asymmetric":
        return KVGeometry("mha", layers, heads, 2 * unit, unit, page_size=_TOKENS)
    return KVGeometry("mha", layers, heads, unit, page_size=_TOKENS)


class WatchedPool:
    """A host pool of `count` pages, poisoned with 0xAA, between guard bands that no call may touch.

    view: the HostPool, which is what a store is lent. memory: of the store's own allocator, where given.
    """

    def __init__(
        self,
        h: Harness,
        count: int,
        form: Form,
        *,
        name: PoolName = PoolName.KV,
        layers: int = _LAYERS,
        memory: memoryview | None = None,
    ) -> None:
        geometry = geometry_of(form.kind, max(1, h.capabilities.alignment), layers=layers)
        most = h.capabilities.max_page_bytes
        if most is not None and geometry.page_nbytes + h.stride > most:
            raise Skipped(f"max_page_bytes {most} leaves no room for a page of {geometry.page_nbytes} bytes")
        self.form, self.count = form, count
        nbytes = pool_nbytes(geometry, layout_named(form.layout), count)
        self._guarded: npt.NDArray[np.uint8] | None = None
        if memory is None:
            guard = max(_GUARD, h.capabilities.alignment)
            self._arena = bytearray([CANARY]) * (nbytes + 3 * guard)
            arena = np.frombuffer(self._arena, np.uint8)
            start = guard + (-arena.ctypes.data) % guard
            memory = memoryview(self._arena)[start : start + nbytes]
            self._guarded, self._start = arena, start
        self.nbytes = nbytes
        self.view: HostPool = make_host_pool(geometry, form.layout, count, name=name, memory=memory)
        self.poison()

    @property
    def page_nbytes(self) -> int:
        """Bytes of a page, without a seal."""
        return self.view.page_nbytes

    def poison(self) -> None:
        """0xAA everywhere, between the pages too."""
        self.view.buffer.fill(POISON)

    def fill(self, slot: int, page_hash: str, version: int = 0) -> None:
        """The hash's own bytes into a page."""
        self.view.set_from_flat_data_page(slot, page_bytes(page_hash, self.page_nbytes, version))

    def data(self, slot: int) -> bytes:
        """A page's flat bytes."""
        return self.view.get_data_page(slot).tobytes()

    def expect(self, slot: int, page_hash: str, what: str, version: int = 0) -> None:
        """The page holds exactly the hash's bytes."""
        expected = page_bytes(page_hash, self.page_nbytes, version)
        check_bytes(self.data(slot), expected, f"{what}: page {slot} of pool {self.view.name} ({self.form})")

    def held_elsewhere(self) -> bool:
        """Give our own views of the memory back, and say whether someone still holds one. The pool ends with it."""
        self._guarded = None
        self.view.owner = None
        self.view.close()
        del self.view
        gc.collect()
        try:
            self._arena.append(0)  # a bytearray cannot grow while a view of it is alive
        except BufferError:
            return True
        return False

    def is_poison(self, slot: int) -> bool:
        """Whether no byte of the page was changed since it was poisoned."""
        return self.data(slot) == bytes([POISON]) * self.page_nbytes

    def expect_untouched(self, written: Iterable[int], what: str) -> None:
        """Nothing but these pages was changed: no neighbour, nothing between them, nothing around the pool."""
        seen = self.view.buffer.copy()
        kept = make_host_pool(self.view.geometry, self.form.layout, self.count, memory=seen)
        for slot in written:
            kept.set_from_flat_data_page(slot, bytes([POISON]) * self.page_nbytes)
        strange = np.flatnonzero(seen != POISON)
        check(not strange.size, f"{what}: {strange.size} bytes beside the pages asked for changed ({self.form})")
        if self._guarded is not None:
            before, after = self._guarded[: self._start], self._guarded[self._start + self.nbytes :]
            intact = bool((before == CANARY).all() and (after == CANARY).all())
            check(intact, f"{what}: bytes around the pool changed ({self.form})")


def usual_form(h: Harness, kind: str = "mha") -> Form:
    """page_first, or the first layout of this kind that the store takes; Skipped where it takes none."""
    takes = forms(h.capabilities.layouts)
    mine = [form for form in takes if form.kind == kind]
    if not mine:
        raise Skipped(f"the store takes no layout of {kind} pools: {h.capabilities.layouts}")
    return next((form for form in mine if form.layout == "page_first"), mine[0])
