"""The adapter by itself, from several threads and over a store that fails: every task ends once, by its event."""

from __future__ import annotations

import random
import select
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lmcache", reason="LMCache is not installed here: tools/peers/lmcache.sh")

import torch
from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj
from lmcache.v1.platform import consume_fd

NBYTES = 4096
TASKS = 334
"""Of each kind: a thousand in all."""


def memory(content: bytes = b"") -> Any:
    buffer = torch.frombuffer(bytearray(content or NBYTES), dtype=torch.uint8)
    shape = torch.Size([NBYTES])
    meta = MemoryObjMetadata(shape, torch.uint8, buffer.data_ptr(), NBYTES, 1, fmt=MemoryFormat.KV_2LTD)
    return TensorMemoryObj(buffer, meta, parent_allocator=None)


@pytest.fixture
def adapter(harness: Any, tmp_path: Path) -> Iterator[Any]:
    from hicache_core.adapters.lmcache import HiCacheL2Adapter

    made = HiCacheL2Adapter(harness.fault_params(tmp_path, {"fail": 0.05, "flip": 0.05, "seed": 3}))
    yield made
    made.close()


def results(adapter: Any, fd: int, task: int, query: Callable[[], Any]) -> Any:
    """What a controller does: wait for the event, then ask."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    while (found := query()) is None:
        assert poller.poll(60_000), f"task {task} never ended"
        try:
            consume_fd(fd)
        except BlockingIOError:
            pass
    return found


def test_a_thousand_tasks(adapter: Any, harness: Any) -> None:
    rng = random.Random(5)
    batches = [[harness.key_of(rng.randrange(400), rank=rng.randrange(2)) for _ in range(4)] for _ in range(TASKS)]
    stored: set[Any] = set()
    ended: dict[str, int] = {"store": 0, "lookup": 0, "load": 0}
    told: list[BaseException] = []

    def stores() -> None:
        pending: dict[int, list[Any]] = {}

        def take() -> Any:
            done = adapter.pop_completed_store_tasks()
            for task, result in done.items():
                keys = pending.pop(task)
                ended["store"] += 1
                if result.is_successful():
                    stored.update(keys)
            return None if pending else True

        for keys in batches:
            task = adapter.submit_store_task(keys, [memory(harness.bytes_of(key, NBYTES)) for key in keys])
            pending[task] = keys
            if len(pending) > 8:
                take()
        results(adapter, adapter.get_store_event_fd(), -1, take)

    def lookups_and_loads() -> None:
        for keys in batches:
            desc = {0: harness.layout([NBYTES], "uint8")}
            task = adapter.submit_lookup_and_lock_task(keys, desc)
            fd = adapter.get_lookup_and_lock_event_fd()
            bits = results(adapter, fd, task, lambda t=task: adapter.query_lookup_and_lock_result(t))
            ended["lookup"] += 1
            locked = [key for i, key in enumerate(keys) if bits.test(i)]
            objects = [memory() for _ in locked]
            task = adapter.submit_load_task(locked, objects)
            fd = adapter.get_load_event_fd()
            bits = results(adapter, fd, task, lambda t=task: adapter.query_load_result(t))
            ended["load"] += 1
            for i, (key, obj) in enumerate(zip(locked, objects, strict=True)):
                assert not bits.test(i) or bytes(obj.byte_array) == harness.bytes_of(key, NBYTES)
            adapter.submit_unlock(locked)

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - told by the test
            told.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in (stores, lookups_and_loads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not told, told
    assert ended == {"store": TASKS, "lookup": TASKS, "load": TASKS}
    assert stored
    assert len(adapter._locks) == 0
    assert len(adapter._turnstile) == 0
    assert not adapter._stores._done
    assert not adapter._loads._done
