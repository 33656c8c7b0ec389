"""Drives a trace through the façade, as an engine would: one request after another."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from hicache_core.config.model import HiCacheConfig, LayoutName, PrefetchPolicy, WritePolicy
from hicache_core.controller.request import Request
from hicache_core.errors import ConfigError, HiCacheError, TransferError
from hicache_core.hicache import HiCache
from hicache_core.namespace import Identity
from hicache_core.pools.geometry import KVGeometry
from hicache_core.replay.content import PageContent, replay_geometry
from hicache_core.replay.oracle import Oracle
from hicache_core.replay.result import ReplayResult
from hicache_core.replay.trace import TraceRequest

PATIENCE = 120.0
"""Seconds after which a wait that should end by itself is an error of the replay."""
LOAD_ATTEMPTS = 3


class ReplayError(HiCacheError):
    """The replay cannot go on; says at which request."""


class ReplaySettings(msgspec.Struct, kw_only=True):
    """How to replay."""

    l1_pages: int = 2000
    l2_pages: int = 8000
    page_bytes: int = 4096
    page_tokens: int = 512
    write_policy: WritePolicy = "write_through"
    prefetch_policy: PrefetchPolicy = "wait_complete"
    eviction_policy: str = "lru"
    layout: LayoutName = "page_first"
    drain: bool = False
    """Each request is finished and backed up before the next begins."""
    drain_seconds: float = 60.0
    seed: int = 0
    """Another seed makes other tokens of the same trace, so other pages."""
    storage_timeout: float = 10.0
    storage_workers: int = 2

    def config(self) -> HiCacheConfig:
        """As the cache wants it. Every hit counts, however short: the thresholds are one page."""
        return HiCacheConfig(
            enable_hierarchical_cache=True,
            page_size=self.page_tokens,
            hicache_write_policy=self.write_policy,
            hicache_storage_prefetch_policy=self.prefetch_policy,
            hicache_mem_layout=self.layout,
            eviction_policy=self.eviction_policy,
            prefetch_threshold=1,
            load_back_threshold=1,
            storage_timeout=self.storage_timeout,
            storage_workers=self.storage_workers,
        )

    def geometry(self) -> KVGeometry:
        """A page of `page_bytes` bytes."""
        return replay_geometry(self.page_bytes, self.page_tokens)

    def identity(self, name: str) -> Identity:
        """What the pages' bytes depend on; `name` keeps this replay's pages apart from another's."""
        shape = self.geometry()
        return Identity(
            model="hicache-replay",
            weights=f"declared:{name}",
            dtype=shape.dtype,
            page_size=shape.page_size,
            kind="mha",
            layer_num=shape.layer_num,
            head_num=shape.head_num,
            head_dim=shape.head_dim,
            layout=self.layout,
        )


class Replay:
    """One replay over an open cache of `settings.geometry()`. The caller shuts the cache down."""

    def __init__(self, cache: HiCache, settings: ReplaySettings) -> None:
        self._cache, self._settings = cache, settings
        self._content = PageContent(settings.page_bytes)
        self._oracle = Oracle()
        self._salt = np.uint32(settings.seed * 0x9E3779B1 & 0xFFFFFFFF)
        self._last_layer = cache.device_pool.geometry.layer_num - 1
        self.result = ReplayResult()

    def run(self, trace: Sequence[TraceRequest], on_request: Callable[[int], None] | None = None) -> ReplayResult:
        """Replay the whole trace. on_request hears how many requests are done. Raises ReplayError, ConfigError."""
        self._check(trace)
        started = time.perf_counter()
        for number, entry in enumerate(trace):
            self._one(number, entry)
            if on_request is not None:
                on_request(number + 1)
        self._cache.drain(self._settings.drain_seconds)
        self.result.seconds = time.perf_counter() - started
        self._close_books()
        return self.result

    def _check(self, trace: Sequence[TraceRequest]) -> None:
        longest = max((len(entry.hash_ids) for entry in trace), default=0)
        room = self._cache.device_pool.capacity
        if longest > room:
            raise ConfigError(f"the longest request has {longest} pages, L1 has {room}: give it at least so many")

    def _one(self, number: int, entry: TraceRequest) -> None:
        cache, result = self._cache, self.result
        blocks = np.asarray(entry.hash_ids, np.uint32) ^ self._salt
        request = cache.new_request(str(number), np.repeat(blocks, self._settings.page_tokens))
        self._admit(request)
        self._compute(request)
        cache.cache_finished_req(request)
        self._book(request, self._oracle.run(entry.hash_ids))
        result.requests += 1
        result.pages_total += len(entry.hash_ids)
        if self._settings.drain:
            result.undrained_requests += not cache.drain(self._settings.drain_seconds)
        else:
            cache.check_hicache_events()

    def _admit(self, request: Request) -> None:
        """Bring the request's prefix to L1 and compare every page of it with what it must hold."""
        cache = self._cache
        for _ in range(LOAD_ATTEMPTS):
            if cache.prefetch_from_storage(request):
                self._wait(request)
            loading = cache.init_load_back(request)
            if self._loaded(loading):
                break
            cache.abandon(request)
        else:
            raise ReplayError(f"request {request.rid}: loading from L2 failed {LOAD_ATTEMPTS} times")
        pages = request.prefix_pages
        if pages:
            self.result.checked_pages += pages
            self.result.wrong_pages += self._content.wrong(cache.device_pool, request.slots, request.hashes(pages))

    def _wait(self, request: Request) -> None:
        cache = self._cache
        deadline = time.monotonic() + PATIENCE
        while True:
            cache.check_hicache_events()
            if cache.check_prefetch_progress(request):
                return
            if time.monotonic() > deadline:
                raise ReplayError(f"request {request.rid}: the prefetch did not end in {PATIENCE:.0f} s")
            cache.wait_for_events(1.0)

    def _loaded(self, pages: int) -> bool:
        producer = self._cache.ready_to_load_host_cache()
        if not pages:
            return True
        try:
            for layer in range(self._last_layer + 1):
                self._cache.wait_layer(producer, layer)
        except TransferError:
            self._cache.check_hicache_events()
            return False
        return True

    def _compute(self, request: Request) -> None:
        """Pages for everything that did not come from a tier."""
        cache, have = self._cache, len(request.slots)
        missing = request.pages - have
        if missing <= 0:
            return
        deadline = time.monotonic() + PATIENCE
        while (slots := cache.alloc_pages(missing)) is None:
            if time.monotonic() > deadline:
                raise ReplayError(f"request {request.rid}: no room for {missing} pages in L1 in {PATIENCE:.0f} s")
            cache.wait_for_events(1.0)
            cache.check_hicache_events()
        request.add_slots(slots)
        self._content.write(cache.device_pool, slots, request.hashes(request.pages)[have:])

    def _book(self, request: Request, oracle_run: int) -> None:
        report, tokens, result = request.report, self._settings.page_tokens, self.result
        tiers = result.hit_pages_by_tier
        tiers["device"] += report.device // tokens
        tiers["host"] += report.host // tokens
        tiers["storage"] += report.storage // tokens
        missing = oracle_run - report.cached // tokens
        if missing > 0:
            result.lose(report.ended, missing)
        elif missing < 0:
            result.extra_hit_pages -= missing

    def _close_books(self) -> None:
        cache, result, size = self._cache, self.result, self._settings.page_bytes
        counters = cache.counters
        result.oracle_hit_pages = self._oracle.hit_pages
        result.bytes_moved = {"device_to_host": counters.backed_up * size, "host_to_device": counters.loaded * size}
        if cache.session is not None:
            found = cache.session.ledger.as_dict()
            moved = found["bytes"]
            result.bytes_moved |= {"storage_to_host": moved.get("get", 0), "host_to_storage": moved.get("set", 0)}
            result.storage = {"backend": cache.session.backend_name, "namespace": cache.session.namespace} | found
        result.ledger = cache.ledger.as_dict()
        result.counters = msgspec.to_builtins(counters)
        result.settings = msgspec.to_builtins(self._settings)
