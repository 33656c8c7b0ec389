"""The L2 adapter through LMCache's own storage manager and controllers: store, empty L1, look up, load, compare."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Start = Callable[..., Any]


def test_an_object_comes_back_with_its_bytes(start: Start, harness: Any, tmp_path: Path) -> None:
    server = start(harness.file_params(tmp_path))
    keys = [harness.key_of(i) for i in range(6)]
    server.store(keys)
    assert len(harness.page_files(tmp_path)) == 6
    assert server.comes_back(keys) == 6
    assert (server.last.l1_hit_count, server.last.l2_hit_count) == (0, 6)
    assert len(server.adapter._locks) == 0, "a lookup was not unlocked"
    assert server.adapter.report_status()["is_healthy"]
    assert server.manager.report_status()["is_healthy"]


def test_a_second_manager_finds_what_the_first_stored(start: Start, harness: Any, tmp_path: Path) -> None:
    keys = [harness.key_of(i) for i in range(4)]
    first = start(harness.file_params(tmp_path))
    first.store(keys)
    first.close()
    second = start(harness.file_params(tmp_path))
    assert second.comes_back([*keys, harness.key_of(99)]) == 4
    assert len(second.adapter._locks) == 0


def cut(path: Path) -> None:
    os.truncate(path, 100)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[1000] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [cut, empty, flip, Path.unlink])
def test_a_damaged_object_cuts_the_prefix_and_is_healed(
    start: Start, harness: Any, tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    server = start(harness.file_params(tmp_path))
    keys = [harness.key_of(i) for i in range(6)]
    server.store(keys)
    damage(harness.page_of(tmp_path, keys[3]))
    assert server.comes_back(keys) == 3
    assert len(server.adapter._locks) == 0
    server.store(keys)
    assert server.comes_back(keys) == 6, "the next write heals it"


def test_models_ranks_groups_salts_and_layouts_share_nothing(start: Start, harness: Any, tmp_path: Path) -> None:
    models = {"a/b": "declared:1", "a-b": "declared:1", "demo/model": "declared:2"}
    server = start(harness.file_params(tmp_path, models=models, weights=""))
    server.store([harness.key_of(1)])
    assert server.comes_back([harness.key_of(1)]) == 1
    for other in (
        harness.key_of(1, model="a/b"),
        harness.key_of(1, model="a-b"),
        harness.key_of(1, rank=1),
        harness.key_of(1, group=1),
        harness.key_of(1, salt="somebody"),
    ):
        assert server.comes_back([other]) == 0
    assert server.comes_back([harness.key_of(1)], harness.layout(dtype="int32")) == 0, "as many bytes, other meaning"
    every = [harness.key_of(1, model=name) for name in models]
    for key in every:
        server.store([key])
    assert len(harness.page_files(tmp_path)) == 3


@pytest.mark.parametrize("change", [{"weights": "declared:other"}, {"tenant": "b"}])
def test_other_weights_and_tenants_share_no_key(
    start: Start, harness: Any, tmp_path: Path, change: dict[str, str]
) -> None:
    keys = [harness.key_of(1)]
    first = start(harness.file_params(tmp_path, tenant="a"))
    first.store(keys)
    assert first.comes_back(keys) == 1
    first.close()
    assert start(harness.file_params(tmp_path, tenant="a") | change).comes_back(keys) == 0


def test_several_groups_in_one_lookup(start: Start, harness: Any, tmp_path: Path) -> None:
    """Two object groups of other layouts: each key is asked for under its own."""
    server = start(harness.file_params(tmp_path))
    wide, narrow = harness.layout(), harness.layout((2, 1, 16, 32), "float16")
    full = [harness.key_of(i) for i in range(3)]
    window = [harness.key_of(i, group=1) for i in range(3)]
    server.store(full, wide)
    server.store(window, narrow)
    task = server.adapter.submit_lookup_and_lock_task([*full, *window, harness.key_of(9)], {0: wide, 1: narrow})
    bits = server.answer(server.adapter.query_lookup_and_lock_result, task)
    assert [bits.test(i) for i in range(7)] == [True] * 6 + [False]
    assert server.adapter.query_lookup_and_lock_result(task) is None, "a result is handed out once"
    assert len(server.adapter._locks) == 6
    server.adapter.submit_unlock([*full, *window])
    assert len(server.adapter._locks) == 0


def test_accounting_listing_and_deleting(start: Start, harness: Any, tmp_path: Path) -> None:
    server = start(harness.file_params(tmp_path))
    adapter = server.adapter
    keys = [harness.key_of(i) for i in range(5)]
    salted = [harness.key_of(i, salt="somebody") for i in range(2)]
    server.store(keys)
    server.store(salted)
    nbytes = 2 * 2 * 16 * 32 * 4
    usage = adapter.get_usage()
    assert usage.total_bytes_used == 7 * nbytes
    assert dict(usage.bytes_by_cache_salt) == {"": 5 * nbytes, "somebody": 2 * nbytes}
    server.store(keys)
    assert adapter.get_usage().total_bytes_used == 7 * nbytes, "what was there already is not counted again"

    seen, cursor = [], None
    while True:
        page = adapter.list_l2_keys(page_size=2, cursor=cursor)
        assert len(page.entries) <= 2
        seen += page.entries
        cursor = page.next_page_token
        if cursor is None:
            break
    assert {entry.key.to_object_key() for entry in seen} == {*keys, *salted}
    assert len(seen) == 7
    assert {entry.size_bytes for entry in seen} == {nbytes}
    assert adapter.list_l2_keys(model_name="other").entries == ()
    for bad in ({"page_size": 0}, {"cursor": "nonsense"}):
        with pytest.raises(ValueError):
            adapter.list_l2_keys(**bad)

    adapter._locks.lock(keys[:1])
    adapter.delete(keys)
    assert adapter.get_usage().total_bytes_used == 3 * nbytes, "a locked object stays"
    adapter.submit_unlock(keys[:1])
    assert server.comes_back(keys) == 1
    assert server.comes_back(salted) == 2


def test_lmcache_may_evict(start: Start, harness: Any, tmp_path: Path) -> None:
    """With a capacity, LMCache's eviction controller deletes by its own policy."""
    eviction = {"eviction_policy": "LRU", "trigger_watermark": 0.5, "eviction_ratio": 0.5}
    server = start(harness.file_params(tmp_path, capacity="64KiB"), eviction=eviction)
    keys = [harness.key_of(i) for i in range(8)]
    server.store(keys)
    server.until(lambda: len(harness.page_files(tmp_path)) <= 4)
    server.until(lambda: server.adapter.get_usage().usage_fraction <= 0.5)


def test_close_lets_go_of_everything(start: Start, harness: Any, tmp_path: Path) -> None:
    before = set(threading.enumerate())
    server = start(harness.file_params(tmp_path))
    server.store([harness.key_of(1)])
    adapter = server.adapter
    fds = [adapter.get_store_event_fd(), adapter.get_lookup_and_lock_event_fd(), adapter.get_load_event_fd()]
    assert len(set(fds)) == 3
    server.close()
    assert {thread for thread in threading.enumerate() if thread.name.startswith("hicache")} <= before
    for fd in fds:
        with pytest.raises(OSError):
            os.fstat(fd)
    adapter.close()
    adapter.submit_store_task([harness.key_of(2)], [])
    adapter.submit_lookup_and_lock_task([harness.key_of(1)], {})
