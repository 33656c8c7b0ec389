"""An engine in miniature around HiCache: numpy pools, L3 in memory, no model. Used by docs/guides/embed.md.

python examples/embed.py
"""

from __future__ import annotations

import time

import numpy as np

from hicache_core.config.model import HiCacheConfig
from hicache_core.hicache import CacheReport, HiCache
from hicache_core.namespace import Identity
from hicache_core.pools.device import NumpyDevicePool
from hicache_core.pools.geometry import KVGeometry

PAGE, LAYERS, HEADS, DIM = 16, 4, 2, 8

config = HiCacheConfig(
    enable_hierarchical_cache=True,
    page_size=PAGE,
    hicache_storage_backend="memory",
    hicache_storage_backend_options={"name": "embed"},  # for `file`: {"root": "/var/cache/hicache"}
    prefetch_threshold=PAGE,
)
geometry = KVGeometry("mha", LAYERS, HEADS, DIM, dtype="float32", page_size=PAGE)
identity = Identity(
    model="toy",
    weights="declared:toy-v1",
    dtype="float32",
    page_size=PAGE,
    kind="mha",
    layer_num=LAYERS,
    head_num=HEADS,
    head_dim=DIM,
    layout=config.hicache_mem_layout,
)


def serve(cache: HiCache, pool: NumpyDevicePool, rid: str, tokens: list[int]) -> CacheReport:
    """One request from queue to end; where its tokens came from."""
    req = cache.new_request(rid, tokens, reuse_limit=len(tokens) - 1)
    cache.prefetch_from_storage(req)
    while True:
        cache.check_hicache_events()
        if cache.check_prefetch_progress(req):
            break
        time.sleep(0.001)  # a real engine computes other requests meanwhile
    cache.init_load_back(req)
    producer = cache.ready_to_load_host_cache()
    pages = cache.alloc_pages(-(-len(tokens) // PAGE) - len(req.slots))  # room for what must be computed
    if pages is None:
        cache.abort_req(req)  # a real engine queues it again
        raise MemoryError(f"no room for {rid}")
    req.add_slots(pages)
    for layer in range(LAYERS):
        cache.wait_layer(producer, layer)
        for at in range(req.prefix_pages * PAGE, len(tokens)):  # the "forward pass"
            pool.k(layer)[req.slots[at // PAGE], at % PAGE] = tokens[at]
            pool.v(layer)[req.slots[at // PAGE], at % PAGE] = -tokens[at]
        stored = pool.k(layer)[req.slots].reshape(-1, HEADS, DIM)[: len(tokens), 0, 0]
        assert np.array_equal(stored, tokens), f"layer {layer} is not that of the prompt"
    cache.cache_finished_req(req, len(tokens))
    return req.report


def main() -> None:
    """The same prompt: computed, from L1, and after a restart of the cache from L3."""
    prompt = [token % 1000 for token in range(5 * PAGE + 3)]
    for life in ("first", "second"):
        pool = NumpyDevicePool(geometry, num_pages=64)
        with HiCache.build(config, device_pool=pool, identity=identity) as cache:
            for rid in ("a", "b"):
                report = serve(cache, pool, rid, prompt)
                print(
                    f"{life} {rid}: {report.device} device, {report.host} host, {report.storage} storage, "
                    f"{report.recomputed} recomputed"
                )
            cache.drain(5.0)  # until L2 and L3 have what was computed


if __name__ == "__main__":
    main()
