"""One request after another: where their tokens come from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

Tokens = Callable[..., np.ndarray]


def test_a_prefix_is_served_from_l1(make: Any, pages: Tokens) -> None:
    engine = make()
    first = engine.run(pages(1, 2, 3))
    again = engine.run(pages(1, 2, 9))
    assert (first.device, first.recomputed) == (0, 12)
    assert (again.device, again.host, again.storage, again.recomputed) == (8, 0, 0, 4)
    assert first.ended == "no_storage"
    engine.check_at_rest()


def test_what_left_l1_comes_back_from_l2(make: Any, pages: Tokens) -> None:
    engine = make()
    engine.run(pages(1, 2, 3))
    assert engine.cache.evict(16) == 3
    report = engine.run(pages(1, 2, 3))
    assert (report.device, report.host, report.recomputed, report.ended) == (0, 12, 0, "")
    assert engine.cache.counters.loaded == 3
    engine.check_at_rest()


def test_what_left_l2_comes_back_from_l3(make: Any, open_storage: Any, pages: Tokens) -> None:
    engine = make(session=open_storage())
    engine.run(pages(1, 2, 3))
    engine.cache.reset()
    assert engine.cache.device_pool.available == 16
    assert engine.host.available == 32
    report = engine.run(pages(1, 2, 3, 4))
    assert (report.device, report.host, report.storage, report.recomputed) == (0, 0, 12, 4)
    assert report.ended == "miss"
    assert engine.cache.counters.prefetched == 3
    engine.check_at_rest()


def test_another_cache_finds_what_this_one_stored(make: Any, open_storage: Any, pages: Tokens) -> None:
    writer = make(session=open_storage(name="shared-by-two-caches"))
    writer.run(pages(1, 2, 3))
    reader = make(session=open_storage(name="shared-by-two-caches"))
    report = reader.run(pages(1, 2, 3))
    assert report.storage == 12
    reader.check_at_rest()


def test_extra_key_and_salt_share_nothing(make: Any, open_storage: Any, pages: Tokens) -> None:
    engine = make(session=open_storage())
    engine.run(pages(1, 2), cache_salt="a")
    assert engine.run(pages(1, 2), cache_salt="b").cached == 0
    assert engine.run(pages(1, 2), extra_key="a").cached == 0
    assert engine.run(pages(1, 2), cache_salt="a").device == 8
    engine.cache.reset()
    assert engine.run(pages(1, 2), cache_salt="b").storage == 8
    assert engine.run(pages(1, 2), cache_salt="c").cached == 0
    engine.check_at_rest()


def test_the_reuse_limit_holds_in_every_tier(make: Any, open_storage: Any, pages: Tokens) -> None:
    engine = make(session=open_storage())
    tokens = pages(1, 2, 3)
    engine.run(tokens)
    limit = len(tokens) - 1
    assert engine.run(tokens, reuse_limit=limit).device == 8
    engine.cache.evict(16)
    report = engine.run(tokens, reuse_limit=limit)
    assert (report.host, report.recomputed, report.ended) == (8, 4, "")
    engine.cache.reset()
    assert engine.run(tokens, reuse_limit=limit).storage == 8
    engine.check_at_rest()


def test_a_prefix_over_all_three_tiers(make: Any, open_storage: Any, pages: Tokens) -> None:
    engine = make(session=open_storage(), host_pages=8)
    engine.run(pages(1, 2, 3, 4, 5, 6))
    engine.cache.reset()
    engine.run(pages(1, 2))
    engine.run(pages(1, 2, 3, 4))
    engine.cache.evict(2)
    report = engine.run(pages(1, 2, 3, 4, 5, 6))
    assert (report.device, report.host, report.storage) == (8, 8, 8)
    engine.check_at_rest()


def test_l1_alone_works(make: Any, pages: Tokens) -> None:
    engine = make(host_pages=None)
    engine.run(pages(1, 2, 3))
    assert engine.run(pages(1, 2)).device == 8
    assert engine.cache.evict(16) == 3
    assert engine.run(pages(1, 2)).cached == 0
    engine.check_at_rest()


@pytest.mark.parametrize("policy", ["write_through", "write_through_selective", "write_back"])
def test_write_policies(make: Any, pages: Tokens, policy: str) -> None:
    engine = make(hicache_write_policy=policy)
    engine.run(pages(1, 2, 3))
    after_one = engine.cache.counters.backed_up
    engine.run(pages(1, 2, 3))
    after_two = engine.cache.counters.backed_up
    engine.cache.evict(16)
    after_eviction = engine.cache.counters.backed_up
    expected = {"write_through": (3, 3, 3), "write_through_selective": (0, 3, 3), "write_back": (0, 0, 3)}
    assert (after_one, after_two, after_eviction) == expected[policy]
    assert engine.run(pages(1, 2, 3)).host == 12
    engine.check_at_rest()


def test_write_back_stores_a_prefix_from_its_beginning(make: Any, open_storage: Any, pages: Tokens) -> None:
    engine = make(session=open_storage(), hicache_write_policy="write_back")
    engine.run(pages(1, 2))
    engine.run(pages(1, 2, 3, 4))
    assert engine.cache.evict(1) == 2
    assert engine.cache.drain(30)
    assert engine.cache.counters.stored == 4
    engine.cache.reset()
    assert engine.run(pages(1, 2, 3, 4)).storage == 16
    engine.check_at_rest()


def test_chunks_count_one_hit(make: Any, pages: Tokens) -> None:
    engine = make(hicache_write_policy="write_through_selective")
    cache = engine.cache
    request = cache.new_request("r", pages(1, 2, 3))
    engine.admit(request)
    assert engine.compute(request)
    for computed in (4, 8, 11):
        cache.cache_unfinished_req(request, computed)
        engine.check()
    cache.cache_finished_req(request)
    assert cache.drain(30)
    assert cache.counters.backed_up == 0
    assert [node.hit_count for node in cache.tree.walk()] == [1, 1, 1]
    engine.check_at_rest()


def test_two_requests_that_compute_the_same_share_pages(make: Any, pages: Tokens) -> None:
    engine = make()
    cache = engine.cache
    first, second = (cache.new_request(name, pages(1, 2, 3)) for name in "ab")
    for request in (first, second):
        engine.admit(request)
        assert engine.compute(request)
    cache.cache_unfinished_req(first, 12)
    cache.cache_unfinished_req(second, 12)
    assert first.slots.tolist() == second.slots.tolist()
    assert cache.device_pool.available == 13
    engine.compare(second, 3)
    second.extend([7, 7])
    second.add_slots(cache.alloc_pages(1))
    cache.cache_finished_req(second, 14)
    cache.cache_finished_req(first)
    assert cache.drain(30)
    engine.check_at_rest()


def test_eviction_makes_room_and_only_as_much(make: Any, pages: Tokens) -> None:
    engine = make(device_pages=4)
    engine.run(pages(1, 2))
    engine.run(pages(3, 4))
    report = engine.run(pages(5))
    assert report.recomputed == 4
    assert engine.cache.counters.demoted == 2
    assert engine.run(pages(3, 4)).device == 8
    engine.check_at_rest()


def test_no_room_in_l1_is_none_and_loses_nothing(make: Any, pages: Tokens) -> None:
    engine = make(device_pages=4)
    cache = engine.cache
    holder = cache.new_request("holder", pages(1, 2, 3))
    engine.admit(holder)
    assert engine.compute(holder)
    assert cache.alloc_pages(2) is None
    cache.cache_finished_req(holder)
    assert cache.alloc_pages(0).tolist() == []
    assert cache.drain(30)
    engine.check_at_rest()


def test_l2_smaller_than_l1_keeps_working(make: Any, open_storage: Any, pages: Tokens) -> None:
    engine = make(session=open_storage(), device_pages=16, host_pages=4)
    for first in range(1, 9):
        engine.run(pages(first, 100 + first))
    assert engine.cache.counters.host_copies_released > 0
    assert engine.cache.counters.stored == 16
    engine.cache.reset()
    assert engine.run(pages(1, 101)).storage == 8
    engine.check_at_rest()
