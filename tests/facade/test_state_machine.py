"""Random requests, aborts, evictions and faults: never a wrong page, never a lost slot, the books always balanced."""

from __future__ import annotations

import contextlib
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hicache_core.config.model import HiCacheConfig
from hicache_core.controller.request import Request, RequestState
from hicache_core.errors import StorageError, TransferError
from hicache_core.hicache import HiCache
from hicache_core.pools.device.numpy_pool import NumpyDevicePool
from hicache_core.pools.host import make_host_pool
from hicache_core.storage.opening import open_session
from hicache_core.storage.session import StorageSession

from .conftest import BOUND, GEOMETRY, IDENTITY, LAYERS, PAGE, Engine, tokens_for

PREFIXES = st.lists(st.integers(0, 2), min_size=1, max_size=6)
FAULTS = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**16),
        "fail": st.sampled_from([0.0, 0.2, 1.0]),
        "flip": st.sampled_from([0.0, 0.3]),
        "truncate": st.sampled_from([0.0, 0.3]),
        "reorder": st.sampled_from([0.0, 0.3]),
        "stale_exists": st.sampled_from([0.0, 0.3]),
        "at": st.sampled_from(["get", "set"]),
    }
)


class Hierarchy(RuleBasedStateMachine):
    """Several requests at once over tiny pools."""

    engine: Engine

    @initialize(
        device_pages=st.integers(6, 16),
        host_pages=st.integers(2, 16),
        write=st.sampled_from(["write_through", "write_through_selective", "write_back"]),
        prefetch=st.sampled_from(["best_effort", "wait_complete", "timeout"]),
        eviction=st.sampled_from(["lru", "lfu", "fifo", "slru", "filo", "mru", "priority"]),
        faults=st.one_of(st.none(), FAULTS),
        attached=st.booleans(),
        history=st.lists(PREFIXES, max_size=4),
        evicted=st.integers(0, 16),
    )
    def build(
        self,
        device_pages: int,
        host_pages: int,
        write: Any,
        prefetch: Any,
        eviction: str,
        faults: dict[str, Any] | None,
        attached: bool,
        history: list[list[int]],
        evicted: int,
    ) -> None:
        self.faults = faults
        self.failing_copies = ""
        config = HiCacheConfig(
            page_size=PAGE,
            prefetch_threshold=1,
            load_back_threshold=1,
            prefetch_timeout_base=0.0,
            prefetch_timeout_per_ki_token=0.0,
            write_retry_limit=8,
            hicache_write_policy=write,
            hicache_storage_prefetch_policy=prefetch,
            eviction_policy=eviction,
        )
        host = make_host_pool(GEOMETRY, "page_first", host_pages, reserve=0)
        cache = HiCache(
            NumpyDevicePool(GEOMETRY, device_pages),
            host,
            config=config,
            session=self.open_store() if attached else None,
            transfer_hook=self.copy_hook,
            owns_pools=True,
        )
        self.engine = Engine(cache, host)
        self.cache = cache
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        for prefix in history:
            self.serve(prefix, None)
        cache.evict(evicted)

    def open_store(self) -> StorageSession:
        if self.faults is None:
            return open_session("memory", identity=IDENTITY)
        return open_session("fault", identity=IDENTITY, options={"inner": "memory"} | self.faults)

    def copy_hook(self, direction: str, layer: int) -> None:
        if direction == self.failing_copies and layer == LAYERS - 1 - (direction == "backup"):
            raise OSError("a copy that was made to fail")

    # requests

    def serve(self, prefix: list[int], salt: str | None) -> None:
        """A whole life, alone."""
        request = self.cache.new_request("r", tokens_for(*prefix), cache_salt=salt)
        self.waiting.append(request)
        self.cache.prefetch_from_storage(request)
        self.start(request, patient=True, quota=None)
        if request in self.running:
            self.running.remove(request)
            self.cache.cache_finished_req(request)

    @rule(prefix=PREFIXES, salt=st.sampled_from([None, "a"]), evict=st.integers(0, 16), evict_host=st.integers(0, 16))
    def serve_and_evict(self, prefix: list[int], salt: str | None, evict: int, evict_host: int) -> None:
        self.serve(prefix, salt)
        self.cache.drain(0.01)
        self.cache.evict(evict)
        self.cache.evict_host(evict_host)

    @rule(
        prefix=PREFIXES,
        salt=st.sampled_from([None, "a"]),
        tail=st.integers(0, PAGE - 1),
        spare_last=st.booleans(),
        priority=st.integers(0, 2),
    )
    def arrive(self, prefix: list[int], salt: str | None, tail: int, spare_last: bool, priority: int) -> None:
        tokens = tokens_for(*prefix).tolist() + [9] * tail
        limit = len(tokens) - 1 if spare_last else None
        request = self.cache.new_request("r", tokens, cache_salt=salt, reuse_limit=limit, priority=priority)
        self.cache.prefetch_from_storage(request)
        self.waiting.append(request)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), patient=st.booleans(), quota=st.sampled_from([None, 0, 2]))
    def admit(self, data: Any, patient: bool, quota: int | None) -> None:
        self.start(data.draw(st.sampled_from(self.waiting)), patient, quota)

    def start(self, request: Request, patient: bool, quota: int | None) -> None:
        """From the queue into the batch, if its time has come."""
        if patient:
            self.engine.wait_for_prefetch(request)
        elif not self.cache.check_prefetch_progress(request):
            return
        self.cache.init_load_back(request, mem_quota_pages=quota)
        self.waiting.remove(request)
        producer = self.cache.ready_to_load_host_cache()
        try:
            for layer in range(LAYERS):
                self.cache.wait_layer(producer, layer)
        except TransferError:
            self.cache.abandon(request)
            self.waiting.append(request)
            for other in [running for running in self.running if running.load_failed]:
                self.running.remove(other)
                self.cache.abandon(other)
                self.waiting.append(other)
        if request.state is RequestState.ADMITTED:
            self.engine.compare(request, request.prefix_pages)
            report = request.report
            assert report.cached + report.recomputed == len(request)
            assert report.cached == request.prefix_pages * PAGE
            if self.engine.compute(request):
                self.running.append(request)
            else:
                self.cache.abandon(request)
                self.waiting.append(request)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), pages=st.integers(0, 6))
    def commit_a_chunk(self, data: Any, pages: int) -> None:
        request = data.draw(st.sampled_from(self.running))
        self.cache.cache_unfinished_req(request, min(len(request), pages * PAGE))
        self.engine.compare(request, request.pages)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), ids=st.lists(st.integers(0, 2), min_size=1, max_size=2 * PAGE))
    def decode(self, data: Any, ids: list[int]) -> None:
        request = data.draw(st.sampled_from(self.running))
        before = len(request)
        request.extend(ids)
        if not self.engine.compute(request):
            self.running.remove(request)
            self.cache.cache_finished_req(request, before)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data: Any) -> None:
        request = data.draw(st.sampled_from(self.running))
        self.running.remove(request)
        self.cache.cache_finished_req(request)

    @precondition(lambda self: self.running or self.waiting)
    @rule(data=st.data())
    def abort(self, data: Any) -> None:
        request = data.draw(st.sampled_from(self.running + self.waiting))
        self.cache.abort_req(request)
        (self.running if request in self.running else self.waiting).remove(request)

    # around them

    @rule()
    def a_pass(self) -> None:
        self.cache.check_hicache_events()

    @rule()
    def drain(self) -> None:
        self.cache.drain(0.01)

    @rule(pages=st.integers(1, 16))
    def evict(self, pages: int) -> None:
        self.cache.evict(pages)

    @rule(pages=st.integers(1, 16))
    def evict_host(self, pages: int) -> None:
        self.cache.evict_host(pages)

    @rule(direction=st.sampled_from(["", "", "load", "backup"]))
    def copies_fail(self, direction: str) -> None:
        self.failing_copies = direction

    @rule(push=st.booleans())
    def attach_or_detach(self, push: bool) -> None:
        if self.cache.session is None:
            self.cache.attach_storage_backend(self.open_store(), push=push)
        else:
            self.cache.detach_storage_backend("drain", 0.01)

    @precondition(lambda self: self.cache.session is not None)
    @rule()
    def clear(self) -> None:
        with contextlib.suppress(StorageError):
            self.cache.clear()

    @precondition(lambda self: not self.running)
    @rule()
    def reset(self) -> None:
        self.cache.reset()
        assert self.cache.tree.node_count == 0

    @invariant()
    def everything_adds_up(self) -> None:
        if hasattr(self, "engine"):
            self.engine.check()

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        for request in self.running:
            self.cache.cache_finished_req(request)
        for request in self.waiting:
            self.cache.abort_req(request)
        if self.cache.session is not None:
            self.cache.detach_storage_backend("drain", 0.0)
        assert self.cache.drain(BOUND)
        self.cache.reset()
        self.engine.check_at_rest()
        assert self.cache.ledger.as_dict()["tiers"]["storage"]["open"] == 0
        assert self.engine.host is not None
        assert self.engine.host.available == self.engine.host.capacity
        assert self.cache.device_pool.available == self.cache.device_pool.capacity
        assert self.cache.shutdown(BOUND)


TestHierarchy = Hierarchy.TestCase
TestHierarchy.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
