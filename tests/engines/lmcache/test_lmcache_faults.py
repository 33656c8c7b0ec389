"""Stores that fail, hang and lie behind the L2 adapter: misses and failed bits, never an exception."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Start = Callable[..., Any]


def loaded(server: Any, keys: list[Any], harness: Any) -> tuple[list[bool], list[Any]]:
    """A load without a lookup before it: bits, and the objects that it was to fill."""
    reserved = server.manager.reserve_write(keys, harness.layout())
    objects = [reserved[key] for key in keys]
    for obj in objects:
        memoryview(obj.byte_array).cast("B")[:] = b"\x5a" * len(obj.byte_array)
    task = server.adapter.submit_load_task(keys, objects)
    bits = server.answer(server.adapter.query_load_result, task)
    return [bits.test(i) for i in range(len(keys))], objects


def test_a_store_that_fails_leaves_the_controllers_alone(start: Start, harness: Any, tmp_path: Path) -> None:
    server = start(harness.fault_params(tmp_path, {"fail": 1.0}))
    keys = [harness.key_of(i) for i in range(6)]
    for key in keys:
        server.store([key])
    assert server.failed_stores == len(keys)
    assert server.comes_back(keys) == 0
    assert not any(loaded(server, keys, harness)[0])
    assert server.store_status()["is_healthy"], "the controller's thread has ended"
    assert not server.adapter.report_status()["is_healthy"]


@pytest.mark.parametrize("fault", ["flip", "truncate", "reorder"])
def test_lies_are_misses(start: Start, harness: Any, tmp_path: Path, fault: str) -> None:
    keys = [harness.key_of(i) for i in range(6)]
    good = start(harness.file_params(tmp_path))
    good.store(keys)
    good.close()
    server = start(harness.fault_params(tmp_path, {fault: 1.0}, heal=False))
    bits, objects = loaded(server, keys, harness)
    assert not all(bits)
    for key, there, obj in zip(keys, bits, objects, strict=True):  # pages exchanged twice are right again
        assert not there or bytes(obj.byte_array) == harness.bytes_of(key, len(obj.byte_array))


def test_many_objects_with_one_failure_in_ten(start: Start, harness: Any, tmp_path: Path) -> None:
    """Every store and load ends; what comes back is right."""
    server = start(harness.fault_params(tmp_path, {"fail": 0.1, "flip": 0.1, "seed": 7}))
    for batch in range(12):
        keys = [harness.key_of(100 * batch + i) for i in range(8)]
        server.store(keys)
        server.comes_back(keys)
        assert len(server.adapter._locks) == 0
    assert server.store_status()["is_healthy"]


def test_a_hanging_store_blocks_no_controller(held: Callable[..., Any], harness: Any) -> None:
    server, store = held()
    keys = [harness.key_of(i) for i in range(3)]
    server.store(keys)
    store.held.add("batch_contains")
    store.held.add("batch_exists")
    begun = time.monotonic()
    task = server.adapter.submit_lookup_and_lock_task(keys, {0: harness.layout()})
    assert server.adapter.query_lookup_and_lock_result(task) is None
    bits = server.answer(server.adapter.query_lookup_and_lock_result, task)
    assert bits.popcount() == 0
    assert time.monotonic() - begun < harness.BOUND
    assert len(server.adapter._locks) == 0
    server.put([harness.key_of(7)])
    server.settle()
    assert server.failed_stores == 0, "stores go on while lookups hang"
    assert server.comes_back(keys) == 0, "a prefetch ends by the deadline"
    store.release.set()


def test_a_read_that_outlives_its_deadline_writes_nowhere(held: Callable[..., Any], harness: Any) -> None:
    server, store = held()
    keys = [harness.key_of(1)]
    server.store(keys)
    store.held.add("batch_get")
    bits, objects = loaded(server, keys, harness)
    assert bits == [False]
    assert store.entered.acquire(timeout=harness.BOUND)
    before = bytes(objects[0].byte_array)
    store.release.set()
    assert store.returned.acquire(timeout=harness.BOUND)
    assert bytes(objects[0].byte_array) == before, "LMCache may have given this memory to another object"
    store.held.clear()
    server.manager.finish_write(keys)


def test_memory_is_held_until_the_store_lets_go(held: Callable[..., Any], harness: Any) -> None:
    server, store = held(hold=600.0)
    store.held.add("batch_set")
    server.put([harness.key_of(1)])
    assert store.entered.acquire(timeout=harness.BOUND)
    server.until(lambda: server.adapter.session.ledger.outcomes("set").get("timeout"))
    assert server.store_status()["in_flight_task_count"] == 1, "LMCache could reuse memory that the store reads"
    store.release.set()
    server.settle()
    assert server.failed_stores == 1


def test_but_not_for_ever(held: Callable[..., Any], harness: Any, caplog: pytest.LogCaptureFixture) -> None:
    server, store = held(hold=0.05)
    store.held.add("batch_set")
    with caplog.at_level(logging.WARNING, "hicache_core.adapters.lmcache"):
        server.put([harness.key_of(1)])
        server.settle()
    assert server.failed_stores == 1
    assert "has not let go" in caplog.text
    store.release.set()


def test_queued_stores_wait_for_their_turn(held: Callable[..., Any], harness: Any) -> None:
    """The deadline of a store begins when the session gets it: a burst on a slow store is not lost."""
    server, store = held(timeout=30.0)
    store.held.add("batch_set")
    for i in range(12):
        server.put([harness.key_of(i)])
        server.until(lambda n=i: server.tasks == n + 1)
    assert len(server.adapter._turnstile) == 12 - 2
    store.release.set()
    server.settle()
    assert server.failed_stores == 0
    assert len(store.pages) == 12
