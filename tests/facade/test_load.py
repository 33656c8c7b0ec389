"""L2 → L1: all or nothing, layer by layer, shared, and when it fails."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from hicache_core.errors import MisuseError, TransferError

BOUND = 30.0


class Copies:
    """A transfer hook that can hold or fail loads."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.failures = 0

    def __call__(self, direction: str, layer: int) -> None:
        if direction == "load":
            assert self.gate.wait(BOUND)
            if self.failures and layer == 1:
                self.failures -= 1
                raise OSError("made to fail")


@pytest.fixture
def copies() -> Copies:
    return Copies()


@pytest.fixture
def engine(make: Any, copies: Copies, pages: Any) -> Any:
    """Pages 1 2 3 are in L2 only."""
    engine = make(transfer_hook=copies)
    engine.run(pages(1, 2, 3))
    engine.cache.evict(16)
    return engine


def test_requests_of_one_batch_share_a_load(engine: Any, pages: Any) -> None:
    cache = engine.cache
    first, second = cache.new_request("a", pages(1, 2, 3)), cache.new_request("b", pages(1, 2, 4))
    assert cache.init_load_back(first) == 3
    assert cache.init_load_back(second) == 0
    assert (first.report.host, second.report.device) == (12, 8)
    producer = cache.ready_to_load_host_cache()
    for layer in range(2):
        cache.wait_layer(producer, layer)
    engine.compare(first, 3)
    engine.compare(second, 2)
    assert cache.counters.loaded == 0
    assert cache.drain(BOUND)
    assert cache.counters.loaded == 3
    assert cache.ready_to_load_host_cache() == -1
    for request in (first, second):
        cache.abort_req(request)
    engine.check_at_rest()


def test_a_later_batch_waits_for_a_load_that_it_shares(engine: Any, copies: Copies, pages: Any) -> None:
    cache = engine.cache
    copies.gate.clear()
    first, second = cache.new_request("a", pages(1, 2, 3)), cache.new_request("b", pages(1, 2, 3))
    cache.init_load_back(first)
    producer = cache.ready_to_load_host_cache()
    cache.init_load_back(second)
    assert second.report.device == 12
    assert cache.ready_to_load_host_cache() == producer
    copies.gate.set()
    cache.wait_layer(producer, 1)
    engine.compare(second, 3)
    for request in (first, second):
        cache.cache_finished_req(request)
    engine.check_at_rest()


def test_nothing_in_flight_is_reclaimed(engine: Any, copies: Copies, pages: Any) -> None:
    cache = engine.cache
    copies.gate.clear()
    request = cache.new_request("a", pages(1, 2, 3))
    cache.init_load_back(request)
    cache.ready_to_load_host_cache()
    cache.abort_req(request)
    assert cache.evict(16) == 0
    assert cache.evict_host(32) == 0
    copies.gate.set()
    assert cache.drain(BOUND)
    assert cache.evict(16) == 3
    assert cache.evict_host(32) == 3
    engine.check_at_rest()


def test_all_or_nothing(engine: Any, pages: Any) -> None:
    cache = engine.cache
    held = cache.alloc_pages(14)
    request = cache.new_request("a", pages(1, 2, 3))
    assert cache.init_load_back(request) == 0
    assert (request.report.cached, request.report.ended) == (0, "device_capacity")
    assert request.report.lost == {"device_capacity": 12}
    cache.device_pool.free(held)
    cache.abort_req(request)
    engine.check_at_rest()


def test_the_quota_and_the_threshold(make: Any, engine: Any, pages: Any) -> None:
    cache = engine.cache
    request = cache.new_request("a", pages(1, 2, 3))
    assert cache.init_load_back(request, mem_quota_pages=2) == 0
    assert request.report.ended == "device_capacity"
    cache.abort_req(request)
    assert engine.run(pages(1, 2, 3)).host == 12
    picky = make(load_back_threshold=10)
    picky.run(pages(1, 2))
    picky.cache.evict(16)
    assert picky.run(pages(1, 2)).ended == "below_threshold"
    engine.check_at_rest()
    picky.check_at_rest()


def test_evicting_for_a_load_spares_what_is_loaded(make: Any, pages: Any) -> None:
    engine = make(device_pages=4, host_pages=4, hicache_write_policy="write_back")
    engine.run(pages(1, 2, 3))
    engine.run(pages(4, 5))
    assert engine.run(pages(1, 2, 3)).host == 12
    engine.check_at_rest()


def test_a_failed_load_is_recomputed(engine: Any, copies: Copies, pages: Any) -> None:
    cache = engine.cache
    copies.failures = 1
    request = cache.new_request("a", pages(1, 2, 3))
    cache.init_load_back(request)
    producer = cache.ready_to_load_host_cache()
    cache.wait_layer(producer, 0)
    with pytest.raises(TransferError, match="made to fail"):
        cache.wait_layer(producer, 1)
    cache.abandon(request)
    engine.check()
    assert cache.ledger.as_dict()["tiers"]["host"]["lost"] == {"load_failed": 12}
    engine.admit(request)
    assert request.report.host == 12
    cache.cache_finished_req(request)
    engine.check_at_rest()


def test_pages_of_a_failed_load_serve_nobody(engine: Any, copies: Copies, pages: Any) -> None:
    cache = engine.cache
    copies.failures = 1
    first, second = cache.new_request("a", pages(1, 2, 3)), cache.new_request("b", pages(1, 2, 3))
    for request in (first, second):
        cache.init_load_back(request)
    producer = cache.ready_to_load_host_cache()
    with pytest.raises(TransferError):
        cache.wait_layer(producer, 1)
    cache.abandon(first)
    assert second.load_failed
    assert cache.match_prefix(first).matched_pages == 0
    with pytest.raises(MisuseError, match="abandon it"):
        cache.cache_finished_req(second)
    with pytest.raises(TransferError):
        cache.wait_layer(cache.ready_to_load_host_cache(), 0)
    cache.init_load_back(first)
    assert first.report.cached == 0
    assert engine.compute(first)
    cache.cache_unfinished_req(first, 12)
    engine.compare(first, 3)
    cache.abandon(second)
    cache.cache_finished_req(first)
    engine.admit(second)
    engine.compare(second, second.prefix_pages)
    cache.cache_finished_req(second)
    engine.check_at_rest()


def test_more_batches_than_layer_marks(engine: Any, copies: Copies, pages: Any) -> None:
    cache = engine.cache
    for first in (5, 6, 7, 8):
        engine.run(pages(first))
    cache.evict(16)
    copies.gate.clear()
    requests = [cache.new_request("r", pages(first)) for first in (5, 6, 7, 8)]
    producers = []
    for request in requests[:3]:
        cache.init_load_back(request)
        producers.append(cache.ready_to_load_host_cache())
    cache.init_load_back(requests[3])
    opener = threading.Timer(0, copies.gate.set)
    opener.start()
    producers.append(cache.ready_to_load_host_cache())
    assert len(set(producers)) == 4
    for request, producer in zip(requests, producers, strict=True):
        cache.wait_layer(producer, 1)
        engine.compare(request, 1)
        cache.cache_finished_req(request)
    opener.join(BOUND)
    engine.check_at_rest()
