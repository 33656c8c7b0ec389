"""Host pools (L2), one module per kind of attention."""

from __future__ import annotations

from hicache_core.pools.geometry import KVGeometry
from hicache_core.pools.host.base import HostPool
from hicache_core.pools.host.mha import MHAHostPool
from hicache_core.pools.host.mla import MLAHostPool
from hicache_core.pools.layouts import check_layout, layout_named, pool_nbytes
from hicache_core.pools.memory import HostMemory, HugePages, allocate_memory
from hicache_core.pools.pages import Bytes
from hicache_core.pools.sizing import check_capacity
from hicache_core.types import PoolName

__all__ = ["HostPool", "MHAHostPool", "MLAHostPool", "make_host_pool"]


def make_host_pool(
    geometry: KVGeometry,
    layout: str,
    num_pages: int,
    *,
    name: PoolName = PoolName.KV,
    memory: HostMemory | memoryview | Bytes | None = None,
    huge_pages: HugePages = "transparent",
    shared: bool = False,
    threads: int | None = None,
    numa_node: int | None = None,
    reserve: int | None = None,
    ranks: int = 1,
) -> HostPool:
    """A host pool of `num_pages` pages, in memory of its own or in `memory` (say, of a store's allocator).

    The combination of kind and layout is checked, then the size against what the machine has (CapacityError with
    the numbers), and only then is memory mapped. huge_pages, shared, threads, numa_node: see
    allocate_memory; reserve, ranks: see check_capacity.
    """
    info = layout_named(layout)
    check_layout(geometry, info)
    pool = MHAHostPool if geometry.kind == "mha" else MLAHostPool
    if memory is not None:
        return pool(geometry, layout, num_pages, memory, name=name)
    nbytes = pool_nbytes(geometry, info, max(1, num_pages))
    check_capacity(nbytes, reserve=reserve, ranks=ranks, mend=f"Ask for fewer than {num_pages:,} pages.")
    mapped = allocate_memory(nbytes, huge_pages=huge_pages, shared=shared, threads=threads, numa_node=numa_node)
    try:
        return pool(geometry, layout, num_pages, mapped, name=name)
    except BaseException:
        mapped.close()
        raise
