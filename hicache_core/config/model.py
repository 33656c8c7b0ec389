"""Every setting of the hierarchy, with the defaults of SGLang 0.5.23, and those of June 2026 for `compat`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from hicache_core.storage.settings import MOST_WORKERS

WritePolicy = Literal["write_through", "write_through_selective", "write_back"]
PrefetchPolicy = Literal["best_effort", "wait_complete", "timeout"]
IoBackend = Literal["kernel", "direct", "kernel_ascend"]
LayoutName = Literal["layer_first", "page_first", "page_first_direct", "page_first_kv_split", "page_head"]


class HiCacheConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Settings of one hierarchy. Flags are the field names with dashes (`--hicache-ratio`)."""

    enable_hierarchical_cache: Annotated[bool, Meta(description="turn the hierarchy on")] = False
    page_size: Annotated[int, Meta(description="tokens per page, a power of two")] = 64
    hicache_ratio: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(description="host pool pages / device pool pages (2.0 when size is not given either)"),
    ] = None
    hicache_size: Annotated[
        float, Meta(description="host pool in GB (10^9 bytes) per rank; overrides ratio", ge=0)
    ] = 0.0
    hicache_write_policy: Annotated[WritePolicy, Meta(description="when L1 pages are copied to L2 and L3")] = (
        "write_through"
    )
    hicache_io_backend: Annotated[IoBackend, Meta(description="how pages move between L1 and L2")] = "kernel"
    hicache_mem_layout: Annotated[LayoutName, Meta(description="byte order of a page in L2 and L3")] = "page_first"
    hicache_storage_backend: Annotated[str | None, Meta(description="an L3 plugin's name, or a URL; none: no L3")] = (
        None
    )
    hicache_storage_prefetch_policy: Annotated[
        PrefetchPolicy, Meta(description="when a request stops waiting for L3")
    ] = "timeout"
    hicache_storage_backend_options: Annotated[
        dict[str, Any], Meta(description="the backend's own options (from the extra config)")
    ] = {}
    hicache_storage_transforms: Annotated[
        list[str | dict[str, Any]],
        Meta(description="page transforms in order of encoding: names, or {name, options}"),
    ] = []
    hicache_storage_observers: Annotated[
        list[str | dict[str, Any]], Meta(description="observers of storage calls: names, or {name, options}")
    ] = []
    eviction_policy: Annotated[
        str, Meta(description="lru, lfu, fifo, mru, filo, slru, priority, or a plugin's name")
    ] = "lru"
    prefetch_threshold: Annotated[int, Meta(description="tokens below which L3 is not asked", ge=1)] = 256
    prefetch_timeout_base: Annotated[float, Meta(description="seconds, policy timeout", ge=0)] = 1.0
    prefetch_timeout_per_ki_token: Annotated[float, Meta(description="seconds per 1024 tokens", ge=0)] = 0.25
    prefetch_timeout_max: Annotated[
        Annotated[float, Meta(ge=0)] | None, Meta(description="cap in seconds; none: no cap")
    ] = None
    prefetch_capacity_share: Annotated[
        float, Meta(description="share of the host pool that prefetches may hold at once", gt=0, le=1)
    ] = 0.5
    load_back_threshold: Annotated[int, Meta(description="tokens below which L2 is not loaded back", ge=0)] = 10
    write_retry_limit: Annotated[int, Meta(description="pages that wait for another attempt to reach L3", ge=0)] = (
        8192
    )
    negative_cache_ttl: Annotated[float, Meta(description="seconds for which a miss in L3 is believed", ge=0)] = 0.5
    storage_timeout: Annotated[float, Meta(description="seconds, deadline of one L3 call", gt=0)] = 10.0
    storage_workers: Annotated[int, Meta(description="I/O threads per direction", ge=1, le=MOST_WORKERS)] = 2
    storage_worker_cpus: Annotated[
        list[Annotated[int, Meta(ge=0)]],
        Meta(description="CPUs for the I/O threads of each direction, in turn; none: the system chooses"),
    ] = []
    tp_lcm_size: Annotated[int | None, Meta(description="grid for page_head objects shared across TP sizes")] = None
    disable_radix_cache: Annotated[
        bool, Meta(description="the engine's: no prefix cache; excludes the hierarchy")
    ] = False
    disaggregation_mode: Annotated[
        Literal["off", "prefill", "decode"],
        Meta(description="role of this instance in prefill/decode disaggregation"),
    ] = "off"
    disaggregation_decode_enable_offload_kvcache: Annotated[
        bool, Meta(description="decode role: what decoding computes goes to L3")
    ] = False
    disaggregation_decode_enable_radix_cache: Annotated[
        bool, Meta(description="decode role: prefixes are matched and restored there too")
    ] = False
    enable_cache_report: Annotated[bool, Meta(description="cached tokens by tier in each answer")] = False
    compat: Annotated[
        Literal["sglang-0.5.23", "sglang-2026-06"],
        Meta(description="whose defaults apply where none is given"),
    ] = "sglang-0.5.23"


COMPAT_DEFAULTS: dict[str, dict[str, Any]] = {
    "sglang-0.5.23": {},
    "sglang-2026-06": {
        "hicache_ratio": 2.0,
        "hicache_mem_layout": "layer_first",
        "prefetch_timeout_base": 2.0,
        "prefetch_timeout_per_ki_token": 0.1,
        "prefetch_timeout_max": 30.0,
    },
}
"""Defaults of `compat` that differ from those above, which are today's."""
