"""L3 → L2: how long a request waits, what it takes, and what becomes of the rest."""

from __future__ import annotations

from typing import Any

import pytest

from hicache_core.clock import ManualClock


@pytest.fixture
def stored(make: Any, open_gated: Any, pages: Any) -> Any:
    """L3 holds pages 1 … 6."""
    writer = make(session=open_gated())
    writer.run(pages(1, 2, 3, 4, 5, 6))
    return None


def asked(store: Any, hook: str) -> list[int]:
    return [count for name, count in store.calls if name == hook]


def test_best_effort_takes_what_has_come(make: Any, open_gated: Any, store: Any, stored: Any, pages: Any) -> None:
    engine = make(session=open_gated(), hicache_storage_prefetch_policy="best_effort")
    cache = engine.cache
    store.hold("get")
    request = cache.new_request("r", pages(1, 2, 3))
    assert cache.prefetch_from_storage(request)
    assert cache.wait_for_events(30)
    cache.check_hicache_events()
    store.wait_until_inside("get")
    assert cache.check_prefetch_progress(request)
    cache.init_load_back(request)
    assert (request.report.cached, request.report.ended) == (0, "deadline")
    assert request.report.lost == {"deadline": 12}
    assert cache.status()["quarantined_pages"] == 3
    assert engine.host.available == 29
    store.release("get")
    assert cache.wait_for_events(30)
    cache.check_hicache_events()
    assert cache.status()["quarantined_pages"] == 0
    assert engine.host.available == 32
    cache.abort_req(request)
    engine.check_at_rest()


def test_best_effort_without_an_answer(make: Any, open_gated: Any, store: Any, stored: Any, pages: Any) -> None:
    engine = make(session=open_gated(), hicache_storage_prefetch_policy="best_effort")
    store.hold("exists")
    request = engine.cache.new_request("r", pages(1, 2))
    assert engine.cache.prefetch_from_storage(request)
    assert engine.cache.check_prefetch_progress(request)
    engine.cache.abort_req(request)
    store.release("exists")
    assert engine.cache.drain(30)
    engine.check_at_rest()


def test_timeout_starts_at_the_first_look(make: Any, open_gated: Any, store: Any, stored: Any, pages: Any) -> None:
    clock = ManualClock()
    engine = make(
        session=open_gated(),
        clock=clock,
        hicache_storage_prefetch_policy="timeout",
        prefetch_timeout_base=1.0,
        prefetch_timeout_per_ki_token=256.0,
    )
    store.hold("get")
    request = engine.cache.new_request("r", pages(1, 2))
    assert engine.cache.prefetch_from_storage(request)
    assert engine.cache.wait_for_events(30)
    engine.cache.check_hicache_events()
    clock.advance(100)
    assert not engine.cache.check_prefetch_progress(request)
    clock.advance(2.9)
    assert not engine.cache.check_prefetch_progress(request)
    clock.advance(0.1)
    assert engine.cache.check_prefetch_progress(request)
    store.release("get")
    engine.cache.abort_req(request)
    assert engine.cache.drain(30)


def test_the_timeout_is_capped(make: Any, open_gated: Any, store: Any, stored: Any, pages: Any) -> None:
    clock = ManualClock()
    engine = make(
        session=open_gated(), clock=clock, hicache_storage_prefetch_policy="timeout", prefetch_timeout_max=0.5
    )
    store.hold("exists")
    request = engine.cache.new_request("r", pages(1, 2))
    assert engine.cache.prefetch_from_storage(request)
    assert not engine.cache.check_prefetch_progress(request)
    clock.advance(0.5)
    assert engine.cache.check_prefetch_progress(request)
    store.release("exists")


def test_below_the_threshold_l3_is_not_asked(make: Any, open_gated: Any, store: Any, stored: Any, pages: Any) -> None:
    engine = make(session=open_gated(), prefetch_threshold=12)
    store.calls.clear()
    assert engine.run(pages(1, 2)).ended == "below_threshold"
    assert asked(store, "exists") == []
    assert engine.run(pages(9, 9, 9)).ended == "miss"
    assert engine.cache.status()["declined"] == {"below_threshold": 1}


def test_a_hit_below_the_threshold_is_left(make: Any, open_gated: Any, store: Any, stored: Any, pages: Any) -> None:
    engine = make(session=open_gated(), prefetch_threshold=12)
    store.calls.clear()
    report = engine.run(pages(1, 2, 9, 9))
    assert (report.cached, report.lost, report.ended) == (0, {"below_threshold": 8}, "below_threshold")
    assert asked(store, "get") == []
    engine.check_at_rest()


def test_prefetches_hold_at_most_their_share(make: Any, open_gated: Any, store: Any, stored: Any, pages: Any) -> None:
    engine = make(session=open_gated(), host_pages=8, prefetch_threshold=8)
    cache = engine.cache
    store.hold("exists")
    first, second = cache.new_request("a", pages(1, 2, 3)), cache.new_request("b", pages(1, 2, 4))
    assert cache.prefetch_from_storage(first)
    assert not cache.prefetch_from_storage(second)
    assert cache.status()["declined"] == {"rate_limited": 1}
    store.release("exists")
    for request in (first, second):
        cache.abort_req(request)
    assert cache.drain(30)
    engine.check_at_rest()


def test_a_long_prefetch_is_cut_to_the_share(make: Any, open_gated: Any, store: Any, stored: Any, pages: Any) -> None:
    engine = make(session=open_gated(), host_pages=8)
    report = engine.run(pages(1, 2, 3, 4, 5, 6))
    assert (report.storage, report.ended) == (16, "rate_limited")
    engine.check_at_rest()


def test_where_l2_is_full_only_part_comes(make: Any, open_gated: Any, store: Any, stored: Any, pages: Any) -> None:
    engine = make(session=open_gated(), host_pages=8, prefetch_capacity_share=1.0)
    cache = engine.cache
    taken = engine.host.alloc(5)
    request = cache.new_request("r", pages(1, 2, 3, 4, 5, 6))
    engine.admit(request)
    assert (request.report.storage, request.report.ended) == (12, "host_capacity")
    assert request.report.lost == {"host_capacity": 12}
    engine.host.free(taken)
    cache.abort_req(request)
    engine.check_at_rest()


def test_where_l2_has_no_room_nothing_comes(make: Any, open_gated: Any, store: Any, stored: Any, pages: Any) -> None:
    engine = make(session=open_gated(), host_pages=8, prefetch_threshold=8)
    taken = engine.host.alloc(7)
    request = engine.cache.new_request("r", pages(1, 2, 3))
    engine.admit(request)
    assert (request.report.storage, request.report.ended) == (0, "host_capacity")
    engine.host.free(taken)
    engine.cache.abort_req(request)
    engine.check_at_rest()


def test_memory_is_taken_only_for_what_is_there(make: Any, open_gated: Any, store: Any, pages: Any) -> None:
    engine = make(session=open_gated(), host_pages=4, prefetch_capacity_share=1.0)
    engine.run(pages(1, 2))
    engine.run(pages(3, 4))
    engine.cache.evict(16)
    request = engine.cache.new_request("r", pages(7, 8, 9, 10))
    engine.admit(request)
    assert request.report.ended == "miss"
    assert engine.cache.counters.evicted_host == 0
    engine.cache.abort_req(request)
    engine.check_at_rest()


def test_a_miss_is_believed_for_a_while(make: Any, open_gated: Any, store: Any, pages: Any) -> None:
    clock = ManualClock()
    engine = make(session=open_gated(), clock=clock, negative_cache_ttl=1.0)
    cache = engine.cache

    def ask() -> str:
        request = cache.new_request("r", pages(1, 2))
        engine.admit(request)
        ended = request.report.ended
        cache.abort_req(request)
        return ended

    assert [ask(), ask()] == ["miss", "negative_cache"]
    assert asked(store, "exists") == [2]
    clock.advance(1.0)
    assert ask() == "miss"
    assert asked(store, "exists") == [2, 2]


def test_what_this_process_wrote_is_asked_for(make: Any, open_gated: Any, store: Any, pages: Any) -> None:
    engine = make(session=open_gated(), clock=ManualClock(), negative_cache_ttl=1000.0)
    assert engine.run(pages(1, 2)).ended == "miss"
    engine.cache.reset()
    assert engine.run(pages(1, 2)).storage == 8


def test_reads_go_in_batches_and_count_without_gaps(make: Any, open_gated: Any, store: Any, pages: Any) -> None:
    many = pages(*range(300))
    writer = make(device_pages=300, host_pages=600, session=open_gated())
    writer.run(many)
    assert asked(store, "set") == [128, 128, 44]
    hole = sorted(store.pages)[0]
    reader = make(device_pages=300, host_pages=600, session=open_gated(), prefetch_capacity_share=1.0)
    request = reader.cache.new_request("r", many)
    keys = list(store.pages)
    position = next(i for i, key in enumerate(keys) if key == hole)
    store.hold("get")
    assert reader.cache.prefetch_from_storage(request)
    assert reader.cache.wait_for_events(30)
    reader.cache.check_hicache_events()
    del store.pages[hole]
    store.release("get")
    reader.admit(request)
    assert sorted(asked(store, "get")) == [44, 128, 128]
    assert request.report.storage == 4 * position
    assert request.report.ended == "miss"
    assert request.report.lost == {"miss": 4 * (300 - position)}
    reader.cache.abort_req(request)
    reader.check_at_rest()


def test_damage_is_a_miss_and_is_healed(make: Any, open_storage: Any, pages: Any) -> None:
    bad = {"inner": "memory", "flip": 1.0, "at": "set", "seed": 1}
    engine = make(session=open_storage("fault", **bad))
    engine.run(pages(1, 2, 3))
    engine.cache.reset()
    report = engine.run(pages(1, 2, 3))
    assert (report.cached, report.ended) == (0, "corrupt")
    assert report.lost == {"corrupt": 12}
    engine.cache.reset()
    assert engine.run(pages(1, 2, 3)).ended in ("poisoned", "corrupt")
    engine.check_at_rest()


def test_a_stalled_read_costs_its_deadline(make: Any, open_gated: Any, store: Any, stored: Any, pages: Any) -> None:
    engine = make(session=open_gated(timeout=0.05))
    store.hold("get")
    report_request = engine.cache.new_request("r", pages(1, 2, 3))
    engine.admit(report_request)
    assert (report_request.report.cached, report_request.report.ended) == (0, "timeout")
    assert engine.host.available == 29
    engine.cache.abort_req(report_request)
    store.release("get")
    assert engine.cache.wait_for_events(30)
    engine.cache.check_hicache_events()
    assert engine.host.available == 32
    engine.check_at_rest()


def test_an_abort_keeps_nothing_and_lends_until_the_read_returns(
    make: Any, open_gated: Any, store: Any, stored: Any, pages: Any
) -> None:
    engine = make(session=open_gated())
    cache = engine.cache
    store.hold("get")
    request = cache.new_request("r", pages(1, 2, 3))
    assert cache.prefetch_from_storage(request)
    assert cache.wait_for_events(30)
    cache.check_hicache_events()
    store.wait_until_inside("get")
    cache.abort_req(request)
    cache.abort_req(request)
    assert engine.host.available == 29
    assert cache.tree.node_count == 0
    cache.reset()
    assert engine.host.available == 29
    store.release("get")
    assert cache.wait_for_events(30)
    cache.check_hicache_events()
    assert engine.host.available == 32
    assert cache.ledger.tiers  # the books are closed in check_at_rest
    engine.check_at_rest()


def test_pages_that_another_request_computed_meanwhile_are_covered(
    make: Any, open_gated: Any, store: Any, stored: Any, pages: Any
) -> None:
    engine = make(session=open_gated())
    cache = engine.cache
    store.hold("get")
    waits = cache.new_request("waits", pages(1, 2, 3))
    assert cache.prefetch_from_storage(waits)
    assert cache.wait_for_events(30)
    cache.check_hicache_events()
    other = cache.new_request("other", pages(1, 2, 3))
    cache.init_load_back(other)
    assert engine.compute(other)
    cache.cache_finished_req(other)
    store.release("get")
    engine.wait_for_prefetch(waits)
    engine.admit(waits)
    assert waits.report.device == 12
    assert cache.ledger.as_dict()["tiers"]["storage"]["lost"] == {"covered": 12}
    cache.abort_req(waits)
    assert cache.drain(30)
    engine.check_at_rest()
