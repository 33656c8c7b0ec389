"""L3 comes, goes, is cleared and explained; the whole is reset, flushed and shut down."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from hicache_core.errors import ConfigError, IdentityError, MisuseError, NotSupportedError, UnknownNameError
from hicache_core.tree.node import StorageState

BOUND = 30.0


def test_attach_stores_under_whole_prefixes(make: Any, open_gated: Any, store: Any, pages: Any) -> None:
    """Nodes made before the attach have no hash yet: a chain that began at them would lie about their content."""
    engine = make()
    engine.run(pages(1, 2))
    engine.cache.attach_storage_backend(open_gated())
    engine.run(pages(1, 2, 3))
    request = engine.cache.new_request("r", pages(1, 2, 3))
    assert {key.split("/")[1][:64] for key in store.pages} == set(request.hashes(3))
    engine.cache.abort_req(request)
    engine.cache.reset()
    assert engine.run(pages(1, 2, 3)).storage == 12
    engine.check_at_rest()


def test_attach_can_push_what_l2_has(make: Any, open_gated: Any, store: Any, pages: Any) -> None:
    engine = make(device_pages=16, host_pages=16)
    for first in (1, 2, 3, 4):
        engine.run(pages(9, first, 10 + first))
    engine.cache.evict(3)
    engine.cache.attach_storage_backend(open_gated(), push=True)
    assert engine.cache.drain(BOUND)
    assert len(store.pages) == 9
    assert all(node.storage_state is StorageState.STORED for node in engine.cache.tree.walk())
    engine.check_at_rest()


def test_without_push_what_l2_has_follows_its_next_use(make: Any, open_gated: Any, store: Any, pages: Any) -> None:
    engine = make()
    engine.run(pages(1, 2))
    engine.run(pages(5, 6))
    engine.cache.attach_storage_backend(open_gated())
    assert engine.cache.drain(BOUND)
    assert store.pages == {}
    engine.run(pages(1, 2))
    assert len(store.pages) == 2
    engine.check_at_rest()


def test_detach_refuses_while_busy_or_drains(make: Any, open_gated: Any, store: Any, pages: Any) -> None:
    engine = make(session=open_gated())
    cache = engine.cache
    store.hold("set")
    engine.run(pages(1, 2), drain=False)
    with pytest.raises(MisuseError, match="busy: 0 prefetches"):
        cache.detach_storage_backend()
    opener = threading.Thread(target=lambda: (store.wait_until_inside("set"), store.release("set")))
    opener.start()
    assert cache.detach_storage_backend("drain", BOUND)
    opener.join(BOUND)
    assert len(store.pages) == 2
    assert cache.session is None
    with pytest.raises(MisuseError, match="no storage is attached"):
        cache.detach_storage_backend()
    assert engine.run(pages(1, 2, 3)).ended == "no_storage"
    engine.check_at_rest()


def test_detach_under_a_waiting_request(make: Any, open_gated: Any, store: Any, pages: Any) -> None:
    engine = make(session=open_gated())
    cache = engine.cache
    engine.run(pages(1, 2, 3))
    cache.reset()
    store.hold("get")
    request = cache.new_request("r", pages(1, 2, 3))
    assert cache.prefetch_from_storage(request)
    assert cache.wait_for_events(BOUND)
    cache.check_hicache_events()
    store.wait_until_inside("get")
    assert not cache.detach_storage_backend("drain", 0.0)
    assert cache.check_prefetch_progress(request)
    engine.admit(request)
    assert request.report.cached == 0
    store.release("get")
    cache.cache_finished_req(request, 0)
    while cache.status()["quarantined_pages"]:
        assert cache.wait_for_events(BOUND)
        cache.check_hicache_events()
    engine.check_at_rest()


def test_one_storage_at_a_time(make: Any, open_gated: Any, open_storage: Any) -> None:
    engine = make(session=open_gated())
    with pytest.raises(MisuseError, match="'gated' is attached"):
        engine.cache.attach_storage_backend(open_storage())
    with pytest.raises(ConfigError, match=r"needs a host pool.*enable_hierarchical_cache"):
        make(host_pages=None).cache.attach_storage_backend(open_storage())


def test_attach_by_name(make: Any, pages: Any, identity: Any) -> None:
    engine = make()
    with pytest.raises(IdentityError, match="needs an identity"):
        engine.cache.attach_storage_backend("memory")
    with pytest.raises(UnknownNameError, match="did you mean 'memory'"):
        engine.cache.attach_storage_backend("memmory", identity=identity)
    assert engine.cache.session is None
    engine.cache.attach_storage_backend("memory", identity=identity, options={"name": "by-name"})
    engine.run(pages(1))
    assert engine.cache.counters.stored == 1


def test_an_identity_of_other_pages_is_refused(make: Any, identity: Any) -> None:
    engine = make()
    with pytest.raises(IdentityError, match=r"dtype 'float16' \(the pool: 'uint8'\)"):
        engine.cache.attach_storage_backend("memory", identity=identity.replace(dtype="float16"))
    assert engine.cache.session is None


def test_fifty_cycles_leave_nothing(make: Any, open_storage: Any, pages: Any) -> None:
    engine = make()
    engine.run(pages(1, 2))
    engine.cache.attach_storage_backend(open_storage())
    engine.cache.detach_storage_backend("drain", BOUND)
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for cycle in range(50):
        engine.cache.attach_storage_backend(open_storage(), push=bool(cycle % 2))
        engine.run(pages(1, 2, cycle), drain=bool(cycle % 3))
        assert engine.cache.detach_storage_backend("drain", BOUND)
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == descriptors
    engine.check_at_rest()


def test_shutdown_leaves_no_thread_and_no_descriptor(make: Any, open_storage: Any, pages: Any) -> None:
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    engine = make(session=open_storage())
    engine.run(pages(1, 2))
    waiting = engine.cache.new_request("waiting", pages(3, 4))
    engine.cache.prefetch_from_storage(waiting)
    running = engine.cache.new_request("running", pages(1, 2))
    engine.admit(running)
    assert engine.cache.shutdown(BOUND)
    assert engine.cache.shutdown(BOUND)
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert engine.cache.device_pool.available + engine.cache.tree.device_pages == 16
    with pytest.raises(MisuseError, match="shut down"):
        engine.cache.new_request("late", pages(1))


def test_shutdown_with_a_store_that_hangs_is_bounded(make: Any, open_gated: Any, store: Any, pages: Any) -> None:
    engine = make(session=open_gated())
    store.hold("set")
    engine.run(pages(1, 2), drain=False)
    while not engine.cache._backup.running:
        engine.cache.wait_for_events(BOUND)
        engine.cache.check_hicache_events()
    store.wait_until_inside("set")
    assert not engine.cache.shutdown(0.05)
    assert not engine.host.memory.closed
    store.release("set")
    assert engine.cache.shutdown(BOUND)
    assert engine.host.memory.closed


def test_clear_removes_this_namespace_only(make: Any, tmp_path: Path, pages: Any, identity: Any) -> None:
    root = str(tmp_path / "store")
    other = make()
    other.cache.attach_storage_backend("file", identity=identity.replace(tenant="other"), options={"root": root})
    other.run(pages(1, 2))
    engine = make()
    engine.cache.attach_storage_backend("file", identity=identity, options={"root": root})
    engine.run(pages(1, 2))
    assert engine.cache.clear() == 2
    engine.run(pages(1, 2))
    assert engine.cache.counters.stored == 4
    assert engine.cache.clear() == 2
    engine.cache.reset()
    assert engine.run(pages(1, 2)).cached == 0
    other.cache.reset()
    assert other.run(pages(1, 2)).storage == 8


def test_clear_says_what_it_cannot(make: Any, open_gated: Any) -> None:
    engine = make()
    with pytest.raises(MisuseError, match="nothing to clear"):
        engine.cache.clear()
    engine.cache.attach_storage_backend(open_gated())
    with pytest.raises(NotSupportedError):
        engine.cache.clear()


def test_reset_refuses_while_requests_run(make: Any, pages: Any) -> None:
    engine = make()
    request = engine.cache.new_request("busy", pages(1, 2))
    engine.admit(request)
    with pytest.raises(MisuseError, match="busy"):
        engine.cache.reset()
    engine.cache.abort_req(request)
    engine.cache.reset()
    engine.check_at_rest()


@pytest.mark.parametrize("policy", ["write_through", "write_through_selective", "write_back"])
def test_flush_writes_everything_out(make: Any, open_gated: Any, store: Any, pages: Any, policy: str) -> None:
    engine = make(session=open_gated(), hicache_write_policy=policy)
    engine.run(pages(1, 2, 3))
    engine.run(pages(1, 4))
    assert engine.cache.flush(BOUND)
    assert len(store.pages) == 4
    engine.check_at_rest()


def test_flush_says_when_something_stays_behind(make: Any, open_gated: Any, store: Any, pages: Any) -> None:
    engine = make(session=open_gated())
    store.rejecting = True
    engine.run(pages(1, 2))
    assert not engine.cache.flush(1.0)
    store.rejecting = False
    assert engine.cache.flush(BOUND)


def test_explain_says_page_by_page(make: Any, open_gated: Any, store: Any, pages: Any) -> None:
    engine = make(session=open_gated())
    cache = engine.cache
    engine.run(pages(1, 2, 3, 4))
    cache.reset()
    engine.run(pages(1, 2))
    cache.evict(16)
    engine.run(pages(1))
    before = [(node.last_access, node.hit_count) for node in cache.tree.walk()]
    found = cache.explain(pages(1, 2, 3, 8))
    assert [page.tiers for page in found.pages] == [
        ("device", "host", "storage"),
        ("host", "storage"),
        ("storage",),
        (),
    ]
    assert (found.usable_pages, found.ended) == (3, "miss")
    assert before == [(node.last_access, node.hit_count) for node in cache.tree.walk()]
    engine.check_at_rest()


def test_explain_tells_what_is_under_way(make: Any, open_gated: Any, store: Any, pages: Any) -> None:
    engine = make(session=open_gated())
    store.hold("set")
    engine.run(pages(1), drain=False)
    while not engine.cache._backup.running:
        engine.cache.wait_for_events(BOUND)
        engine.cache.check_hicache_events()
    assert engine.cache.explain(pages(1)).pages[0].state == "storing"
    store.release("set")
    assert engine.cache.drain(BOUND)
    assert engine.cache.explain(pages(1)).pages[0].state == ""
    unattached = make()
    unattached.run(pages(1))
    page = unattached.cache.explain(pages(1, 2)).pages
    assert [(p.tiers, p.reason) for p in page] == [(("device", "host"), "no_storage"), ((), "no_storage")]
    engine.check_at_rest()
