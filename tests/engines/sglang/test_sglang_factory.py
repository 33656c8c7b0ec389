"""The door as SGLang's own factory makes it, with the storage types of whatever version is there."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest


@pytest.mark.parametrize("form", ["backend", "url"])
def test_the_factory_makes_it_and_every_method_answers(
    pools: ModuleType, store: Callable[..., Any], tmp_path: Any, form: str
) -> None:
    from sglang.srt.mem_cache import hicache_storage as engine
    from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory

    chosen = {} if form == "backend" else {"backend": "", "options": {}, "url": f"file://{tmp_path}/store"}
    config, pool = pools.config(store(**chosen)), pools.mha("page_first")
    config.extra_config |= {
        "backend_name": "hicache",
        "module_path": "hicache_core.adapters.sglang",
        "class_name": "HiCacheDynamicStorage",
    }
    door = StorageBackendFactory.create_backend("dynamic", config, pool)
    assert isinstance(door, engine.HiCacheStorage)
    door.register_mem_pool_host(pool)
    door.register_mem_host_pool_v2(pool, engine.PoolName.KV)
    getattr(door, "on_host_pools_registered", lambda: None)()
    keys = pools.hashes(3)
    info = engine.HiCacheStorageExtraInfo()
    assert door.batch_exists(keys, info) == 0
    assert door.batch_set_v1(keys, pools.tokens([0, 1, 2]), info) == [True] * 3
    assert door.batch_exists(keys, info) == 3
    assert door.batch_get_v1(keys, pools.tokens([4, 5, 6]), info) == [True] * 3
    assert pools.same_page(pool, 2, 6)
    again = [pools.transfer("kv", keys, [7, 8, 9])]
    assert door.batch_get_v2(again, info) == {engine.PoolName.KV: [True] * 3}
    assert door.batch_set_v2(again, info) == {engine.PoolName.KV: [True] * 3}
    found = door.batch_exists_v2(keys, [], info)
    assert isinstance(found, engine.PoolTransferResult)
    assert found.kv_hit_pages == 3
    stats = door.get_stats()
    assert (stats.prefetch_pgs, stats.backup_pgs) == ([3, 3], [3, 3])
    assert door.clear()
    assert door.batch_exists(keys) == 0
    door.close()


def test_it_takes_what_the_base_class_takes(sglang: str) -> None:
    """Every public method of this version's base class is ours too, with at least its parameters."""
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorage

    from hicache_core.adapters.sglang import HiCacheDynamicStorage

    for name, method in inspect.getmembers(HiCacheStorage, inspect.isfunction):
        if name.startswith("_"):
            continue
        ours = inspect.signature(getattr(HiCacheDynamicStorage, name)).parameters
        theirs = inspect.signature(method).parameters
        assert list(ours)[: len(theirs)] == list(theirs), name
