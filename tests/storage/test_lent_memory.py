"""Where lent memory lies, and that nothing is registered twice."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from hicache_core.errors import MisuseError
from hicache_core.pools.geometry import KVGeometry
from hicache_core.pools.host import make_host_pool
from hicache_core.storage.lent_memory import LentMemory, address_of, extents_of


def test_pools_may_share_one_extent() -> None:
    lent = LentMemory()
    assert lent.add((4096, 100), "kv", shareable=True)
    assert not lent.add((4096, 100), "indexer", shareable=True)
    with pytest.raises(MisuseError, match="kv, indexer"):
        lent.add((4100, 4), "other", shareable=True)
    assert lent.covers(4100, 96)
    assert not lent.covers(4100, 97)
    assert not lent.remove(4096, "kv")
    assert lent.remove(4096, "indexer")
    assert not lent.covers(4096, 1)


def test_what_overlaps_is_refused_and_neighbours_are_not() -> None:
    lent = LentMemory()
    assert lent.add((4096, 100), "a", shareable=False)
    for extent in ((4096, 100), (4000, 97), (4195, 1), (0, 9999)):
        with pytest.raises(MisuseError, match="overlap"):
            lent.add(extent, "b", shareable=False)
    assert lent.add((4196, 4), "b", shareable=False)
    assert lent.all() == [(4096, 100), (4196, 4)]
    assert not lent.covers(4190, 10)  # the client knows two registrations, not one
    with pytest.raises(MisuseError, match="not registered"):
        lent.remove(4196, "a")


def test_addresses_of_writable_and_read_only_buffers() -> None:
    memory = np.arange(16, dtype=np.uint8)
    start = memory.ctypes.data
    assert address_of(memory.data) == start
    assert address_of(memory.data[3:5]) == start + 3
    assert address_of(memory.data.toreadonly()[3:]) == start + 3


def test_the_memory_of_the_cores_pools() -> None:
    pool = make_host_pool(KVGeometry("mha", 2, 2, 8, page_size=16), "page_first", 4)
    [(start, nbytes)] = extents_of(pool)
    ptrs, sizes = pool.regions(np.arange(4))
    assert start <= ptrs.min()
    assert (ptrs + sizes).max() <= start + nbytes


@dataclass
class Borrowed:
    """A view of somebody's pool that says only who owns it."""

    owner: Any
    ptr: int
    name: str = field(default="kv")

    def regions(self, slots: Any) -> Any:
        return np.full((len(slots), 1), self.ptr), np.full((len(slots), 1), 8)


def test_an_owner_is_looked_into_and_not_believed() -> None:
    one, other = np.zeros(64, np.uint8), np.zeros(64, np.uint8)
    both = sorted((part.ctypes.data, 64) for part in (one, other))
    assert extents_of(Borrowed((one, [other]), other.ctypes.data)) == both
    assert extents_of(Borrowed((one,), other.ctypes.data)) == []
    assert extents_of(Borrowed(object(), one.ctypes.data)) == []
