"""L1 → L2 → L3: order, retries, what is given up, and waiting for it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from hicache_core.clock import ManualClock
from hicache_core.errors import MisuseError

BOUND = 30.0


def test_ancestors_are_stored_before_descendants(make: Any, open_gated: Any, store: Any, pages: Any) -> None:
    engine = make(session=open_gated())
    cache = engine.cache
    store.hold("set")
    request = cache.new_request("r", pages(1, 2, 3))
    engine.admit(request)
    assert engine.compute(request)
    for computed in (4, 8, 12):
        cache.cache_unfinished_req(request, computed)
        while cache._write.busy:
            cache.wait_for_events(BOUND)
            cache.check_hicache_events()
    assert len(cache._backup.running) == 1
    cache.cache_finished_req(request)
    store.release("set")
    assert cache.drain(BOUND)
    keys = [key.split("/")[1][:64] for key in store.pages]
    assert keys == request.hashes(3)
    engine.check_at_rest()


def test_a_failed_write_is_made_again(make: Any, open_gated: Any, store: Any, pages: Any) -> None:
    clock = ManualClock()
    engine = make(session=open_gated(), clock=clock)
    store.failing.add("set")
    engine.run(pages(1, 2), drain=False)
    while not len(engine.cache._backup.dirty):
        engine.cache.wait_for_events(BOUND)
        engine.cache.check_hicache_events()
    assert engine.cache.status()["dirty_pages"] == 2
    store.failing.clear()
    for _ in range(20):
        if engine.cache.drain(0.01):
            break
        clock.advance(10)
    assert engine.cache.counters.store_retries >= 1
    assert engine.cache.counters.stored == 2
    assert engine.cache.counters.store_given_up == 0
    assert len(store.pages) == 2
    engine.check_at_rest()


def test_what_fails_too_often_is_given_up_and_said(make: Any, open_gated: Any, store: Any, pages: Any) -> None:
    clock = ManualClock()
    engine = make(session=open_gated(), clock=clock)
    cache = engine.cache
    probe = cache.new_request("probe", pages(1, 2))
    store.failing_pages.add(probe.hashes(2)[1])
    cache.abort_req(probe)
    engine.run(pages(1, 2), drain=False)
    for other in range(10, 30):  # what succeeds in between keeps the breaker closed
        clock.advance(10)
        engine.run(pages(other), drain=False)
        while cache._backup.running or cache._write.busy:
            assert cache.wait_for_events(BOUND)
            cache.check_hicache_events()
    assert cache.counters.store_given_up == 2
    assert cache.status()["dirty_pages"] == 0
    assert [page.reason for page in cache.explain(pages(1, 2)).pages] == ["never_stored"] * 2
    cache.evict(16)
    cache.evict_host(32)
    assert engine.run(pages(1, 2), drain=False).ended == "never_stored"
    store.failing_pages.clear()
    clock.advance(10)
    assert cache.drain(BOUND)
    cache.reset()
    assert engine.run(pages(1, 2)).storage == 8
    engine.check_at_rest()


def test_a_rejected_page_is_not_offered_again_until_it_is_used(
    make: Any, open_gated: Any, store: Any, pages: Any
) -> None:
    engine = make(session=open_gated())
    store.rejecting = True
    engine.run(pages(1, 2))
    assert engine.cache.counters.store_retries == 0
    assert engine.cache.counters.store_given_up == 2
    store.rejecting = False
    engine.run(pages(1, 2, 3))
    assert len(store.pages) == 3
    engine.check_at_rest()


def test_the_dirty_queue_is_bounded(make: Any, open_gated: Any, store: Any, pages: Any) -> None:
    clock = ManualClock()
    engine = make(session=open_gated(), clock=clock, write_retry_limit=4)
    store.failing.add("set")
    for first in (1, 2, 3, 4):
        engine.run(pages(first, 100 + first), drain=False)
        while not engine.cache._backup.dirty.pages and not engine.cache.counters.store_given_up:
            engine.cache.wait_for_events(BOUND)
            engine.cache.check_hicache_events()
    while engine.cache._backup.running or engine.cache._write.busy:
        engine.cache.wait_for_events(BOUND)
        engine.cache.check_hicache_events()
    assert engine.cache.status()["dirty_pages"] <= 4
    assert engine.cache.counters.store_given_up == 4
    engine.cache.detach_storage_backend("drain", 0.0)
    engine.check_at_rest()


def test_evicted_before_it_was_stored_is_never_stored(make: Any, open_gated: Any, store: Any, pages: Any) -> None:
    clock = ManualClock()
    engine = make(session=open_gated(), clock=clock)
    store.failing.add("set")
    engine.run(pages(1, 2), drain=False)
    while not len(engine.cache._backup.dirty):
        engine.cache.wait_for_events(BOUND)
        engine.cache.check_hicache_events()
    engine.cache.evict(16)
    engine.cache.evict_host(32)
    assert engine.cache.tree.node_count == 0
    request = engine.cache.new_request("r", pages(1, 2))
    engine.admit(request)
    assert request.report.ended == "never_stored"
    engine.cache.abort_req(request)
    clock.advance(100)
    engine.check_at_rest()


def test_a_page_being_written_is_not_reclaimed(make: Any, open_gated: Any, store: Any, pages: Any) -> None:
    engine = make(session=open_gated())
    store.hold("set")
    engine.run(pages(1, 2), drain=False)
    store.entered["set"].release()
    while not engine.cache._backup.running:
        engine.cache.wait_for_events(BOUND)
        engine.cache.check_hicache_events()
    engine.cache.evict(16)
    assert engine.cache.evict_host(32) == 0
    assert engine.host.available == 30
    store.release("set")
    assert engine.cache.drain(BOUND)
    assert engine.cache.evict_host(32) == 2
    engine.check_at_rest()


@pytest.mark.parametrize("resets", [1, 3])
def test_an_abandoned_write_keeps_its_pages(make: Any, open_gated: Any, store: Any, pages: Any, resets: int) -> None:
    engine = make(session=open_gated(timeout=0.05))
    cache = engine.cache
    store.hold("set")
    engine.run(pages(1, 2), drain=False)
    while not len(cache._backup.dirty):
        cache.wait_for_events(BOUND)
        cache.check_hicache_events()
    cache.evict(16)
    assert cache.evict_host(32) == 0
    for _ in range(resets):
        cache.reset()
    assert engine.host.available == 30
    assert cache.status()["quarantined_pages"] == 2
    store.release("set")
    while cache.status()["quarantined_pages"]:
        assert cache.wait_for_events(BOUND)
        cache.check_hicache_events()
    assert engine.host.available == 32
    engine.check_at_rest()


def test_the_barrier_waits_until_a_prefix_is_stored(make: Any, open_gated: Any, store: Any, pages: Any) -> None:
    engine = make(session=open_gated())
    cache = engine.cache
    store.hold("set")
    engine.run(pages(1, 2), drain=False)
    assert not cache.backup_barrier(pages(1, 2), 0.01)
    opener = threading.Thread(target=lambda: (store.wait_until_inside("set"), store.release("set")))
    opener.start()
    assert cache.backup_barrier(pages(1, 2), BOUND)
    opener.join(BOUND)
    assert len(store.pages) == 2
    assert not cache.backup_barrier(pages(1, 2, 3), BOUND)
    cache.reset()
    assert cache.backup_barrier(pages(1, 2), BOUND)
    assert not cache.backup_barrier(pages(8), BOUND)
    engine.check_at_rest()


@pytest.mark.parametrize("policy", ["write_back", "write_through_selective"])
def test_the_barrier_overrides_the_write_policy(
    make: Any, open_gated: Any, store: Any, pages: Any, policy: str
) -> None:
    engine = make(session=open_gated(), hicache_write_policy=policy)
    engine.run(pages(1, 2, 3))
    assert store.pages == {}
    assert engine.cache.backup_barrier(pages(1, 2), BOUND)
    assert len(store.pages) == 2
    assert engine.cache.flush(BOUND)
    assert len(store.pages) == 3
    engine.check_at_rest()


def test_the_barrier_is_false_without_storage(make: Any, pages: Any) -> None:
    engine = make()
    engine.run(pages(1, 2))
    assert not engine.cache.backup_barrier(pages(1, 2), BOUND)


def test_a_failed_copy_to_l2_is_counted_and_tried_at_the_next_use(make: Any, pages: Any) -> None:
    failing = [True]

    def hook(direction: str, layer: int) -> None:
        if direction == "backup" and failing:
            failing.pop()
            raise OSError("made to fail")

    engine = make(transfer_hook=hook)
    engine.run(pages(1, 2))
    assert engine.cache.counters.backup_failed == 2
    assert engine.host.available == 32
    engine.run(pages(1, 2))
    assert engine.cache.counters.backed_up == 2
    engine.check_at_rest()


def test_no_room_in_l2_is_counted(make: Any, pages: Any) -> None:
    engine = make(host_pages=4)
    taken = engine.host.alloc(3)
    engine.run(pages(1, 2))
    assert engine.cache.counters.backup_skipped == 2
    engine.host.free(taken)
    engine.run(pages(1, 2))
    assert engine.cache.counters.backed_up == 2
    engine.check_at_rest()


def test_only_an_admitted_request_is_committed(make: Any, pages: Any) -> None:
    engine = make()
    request = engine.cache.new_request("r", pages(1, 2))
    with pytest.raises(MisuseError, match="should be admitted"):
        engine.cache.cache_finished_req(request)
    engine.admit(request)
    with pytest.raises(MisuseError, match="tokens computed"):
        engine.cache.cache_unfinished_req(request, 8)
    with pytest.raises(MisuseError, match="should be waiting"):
        engine.cache.init_load_back(request)
    engine.cache.abort_req(request)
    with pytest.raises(MisuseError, match="should be waiting"):
        engine.cache.prefetch_from_storage(request)
    engine.check_at_rest()
