"""The façade that an engine holds.

The engine's thread calls everything here and owns the tree; I/O runs on threads of the session and of the transfer
engine, whose acknowledgements `check_hicache_events` takes in. A request walks:

`new_request` → `prefetch_from_storage` → `check_prefetch_progress` until True → `init_load_back` →
`ready_to_load_host_cache` → forward, each layer after `wait_layer` → `cache_unfinished_req` per chunk →
`cache_finished_req`. At any point `abort_req` ends it; `abandon` sends it back to the start.

All slots are page slots. Nothing here raises for what a store does; MisuseError is for the caller's mistakes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hicache_core.clock import Clock, monotonic
from hicache_core.config.model import HiCacheConfig
from hicache_core.controller.explain import Explanation, PageExplanation
from hicache_core.controller.request import CacheReport, Request, RequestState
from hicache_core.controller.sync import RankSync
from hicache_core.controller.upkeep import Upkeep
from hicache_core.errors import ConfigError
from hicache_core.pools.device.base import DevicePool
from hicache_core.pools.host import make_host_pool
from hicache_core.pools.sizing import size_host_pool

if TYPE_CHECKING:
    from hicache_core.namespace import Identity

__all__ = ["CacheReport", "Explanation", "HiCache", "PageExplanation", "Request", "RequestState"]


class HiCache(Upkeep):
    """A hierarchy of L1, L2 and, while one is attached, L3.

    device_pool: L1. host_pool: L2, or None for L1 alone. session: L3, used from the start; from then on the cache
    closes it. sync: rank agreement, one rank where None. clock: seconds, for deadlines and pauses. transfer_hook:
    called by the copy threads before each copy (tests, faults). owns_pools: close the host pool in `shutdown`.
    """

    @classmethod
    def build(
        cls,
        config: HiCacheConfig,
        *,
        device_pool: DevicePool,
        identity: Identity | None = None,
        sync: RankSync | None = None,
        clock: Clock = monotonic,
        host_pages: int | None = None,
    ) -> HiCache:
        """The hierarchy that a config describes: host pool sized and made, storage opened.

        identity: names what the pages' bytes depend on; needed with a storage backend. host_pages: size of L2 in
        pages instead of hicache_ratio and hicache_size. Raises ConfigError, CapacityError, OpenError, PluginError
        before (or after giving back) anything was taken.
        """
        if not config.enable_hierarchical_cache:
            if config.hicache_storage_backend:
                raise ConfigError("hicache_storage_backend needs enable_hierarchical_cache: L3 works through L2")
            return cls(device_pool, None, config=config, sync=sync, clock=clock)
        geometry = device_pool.geometry
        if host_pages is None:
            ratio, size_gb = config.hicache_ratio, config.hicache_size
            host_pages = size_host_pool(geometry, device_pool.num_pages, ratio=ratio, size_gb=size_gb).num_pages
        host_pool = make_host_pool(geometry, config.hicache_mem_layout, host_pages)
        try:
            cache = cls(device_pool, host_pool, config=config, sync=sync, clock=clock, owns_pools=True)
        except BaseException:
            host_pool.close()
            raise
        if config.hicache_storage_backend is None:
            return cache
        try:
            cache.attach_storage_backend(config.hicache_storage_backend, identity=identity)
        except BaseException:
            cache.shutdown(0.0)
            raise
        return cache

    def __enter__(self) -> HiCache:
        return self

    def __exit__(self, *exc: object) -> None:
        self.shutdown()
