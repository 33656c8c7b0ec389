"""The remote connector through LMCache's own RemoteBackend and CPU backend."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("lmcache", reason="LMCache is not installed here: tools/peers/lmcache.sh")

import torch
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.exceptions import IrrecoverableException
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend import LocalCPUBackend, RemoteBackend

LAYERS, HEADS, DIM, CHUNK = 2, 2, 16, 16
MODEL = "demo/model"
BOUND = 60.0


def chunk_key(number: int, model: str = MODEL, worker: int = 0, **tags: str) -> Any:
    told = {f"lmcache.tag.{name}": value for name, value in tags.items()}
    return CacheEngineKey(model, 1, worker, 1000 + number, torch.bfloat16, told)


class Worker:
    """What an engine's worker does with its remote backend."""

    def __init__(
        self, given: dict[str, Any], loop: Any, *, plugin: str = "hicache", cls: str = "", **more: Any
    ) -> None:
        extra = {
            f"remote_storage_plugin.{plugin}.module_path": "hicache_core.adapters.lmcache",
            f"remote_storage_plugin.{plugin}.class_name": cls or "HiCacheConnectorAdapter",
            f"remote_storage_plugin.{plugin}.config": given,
            **more.pop("extra", {}),
        }
        model = more.pop("model", MODEL)
        self.config = LMCacheEngineConfig.from_defaults(
            chunk_size=CHUNK,
            local_cpu=False,
            max_local_cpu_size=0.004,
            remote_storage_plugins=[plugin],
            extra_config=extra,
            **{"remote_serde": "naive", **more},
        )
        self.metadata = LMCacheMetadata(
            model_name=model,
            world_size=1,
            local_world_size=1,
            worker_id=0,
            local_worker_id=0,
            kv_dtype=torch.bfloat16,
            kv_shape=(LAYERS, 2, CHUNK, HEADS, DIM),
            chunk_size=CHUNK,
        )
        self.cpu = LocalCPUBackend(config=self.config, metadata=self.metadata, dst_device="cpu")
        self.backend = RemoteBackend(
            config=self.config,
            metadata=self.metadata,
            loop=loop,
            local_cpu_backend=self.cpu,
            dst_device="cpu",
            plugin_name=plugin,
        )
        assert self.backend.connection is not None, "LMCache only logs a connector that it could not make"
        self.connector = self.backend.connection.getWrappedConnector()

    def object_of(self, key: Any, tokens: int = CHUNK) -> Any:
        obj = self.cpu.allocate(self.metadata.get_shapes(tokens), self.connector.meta_dtypes, self.connector.meta_fmt)
        memoryview(obj.byte_array).cast("B")[:] = content(key, tokens)
        return obj

    def put(self, key: Any, tokens: int = CHUNK) -> Any:
        obj = self.object_of(key, tokens)
        self.backend.submit_put_task(key, obj).result(timeout=BOUND)
        obj.ref_count_down()
        return obj

    def comes_back(self, key: Any, tokens: int = CHUNK) -> bool:
        obj = self.backend.get_blocking(key)
        if obj is None:
            return False
        assert obj.get_shape()[2] == tokens
        assert bytes(obj.byte_array) == content(key, tokens), "a hit with other bytes"
        obj.ref_count_down()
        return True

    def take_all(self) -> list[Any]:
        """Every full chunk of memory that the CPU backend has."""
        taken: list[Any] = []
        shapes = self.metadata.get_shapes()
        while True:
            obj = self.cpu.allocate(shapes, self.connector.meta_dtypes, self.connector.meta_fmt, busy_loop=False)
            if obj is None:
                return taken
            taken.append(obj)

    def free(self) -> int:
        """How many these are: the same before and after, or something leaks."""
        taken = self.take_all()
        for obj in taken:
            obj.ref_count_down()
        return len(taken)


def wait_for(there: Callable[[], object]) -> None:
    pause, end = threading.Event(), time.monotonic() + BOUND
    while not there():
        assert time.monotonic() < end, "it never came to that"
        pause.wait(0.01)


def content(key: Any, tokens: int) -> bytes:
    nbytes = LAYERS * 2 * tokens * HEADS * DIM * 2
    generator = torch.Generator().manual_seed(key.chunk_hash)
    return bytes(torch.randint(0, 256, (nbytes,), generator=generator, dtype=torch.uint8).numpy().tobytes())


@pytest.fixture
def loop() -> Iterator[Any]:
    made = asyncio.new_event_loop()
    thread = threading.Thread(target=made.run_forever, daemon=True)
    thread.start()
    yield made
    made.call_soon_threadsafe(made.stop)
    thread.join(BOUND)
    made.close()


@pytest.fixture
def work(loop: Any, tmp_path: Path, held_stores: ModuleType) -> Iterator[Callable[..., Worker]]:
    running: list[Worker] = []

    def make(given: dict[str, Any] | None = None, **more: Any) -> Worker:
        base = {"backend": "file", "options": {"root": str(tmp_path)}, "weights": "declared:demo"}
        running.append(Worker(base | (given or {}), loop, **more))
        return running[-1]

    yield make
    for worker in running:
        worker.backend.close()
        worker.cpu.close()


@pytest.mark.parametrize("meta", [True, False])
def test_chunks_come_back(work: Callable[..., Worker], meta: bool) -> None:
    worker = work(extra={"save_chunk_meta": meta})
    keys = [chunk_key(i) for i in range(4)]
    before = worker.free()
    for key in keys:
        worker.put(key)
    assert [worker.backend.contains(key) for key in [*keys, chunk_key(77)]] == [True] * 4 + [False]
    assert worker.backend.batched_contains([*keys[:2], chunk_key(77), *keys[2:]]) == 2
    assert all(worker.comes_back(key) for key in keys)
    assert not worker.comes_back(chunk_key(77))
    assert worker.backend.get_blocking_failed_count == 1
    assert worker.free() == before, "memory of LMCache leaked"


def test_a_restart_finds_them_and_the_other_class_too(work: Callable[..., Worker]) -> None:
    work().put(chunk_key(1))
    assert work().comes_back(chunk_key(1))
    assert work(plugin="mine", cls="HiCacheConnector").comes_back(chunk_key(1))


@pytest.mark.parametrize("meta", [True, False])
def test_a_chunk_of_fewer_tokens(work: Callable[..., Worker], meta: bool) -> None:
    worker = work(extra={"save_chunk_meta": meta})
    before = worker.free()
    worker.put(chunk_key(1), tokens=5)
    assert worker.comes_back(chunk_key(1), tokens=5)
    assert worker.free() == before


def test_batches(work: Callable[..., Worker], loop: Any) -> None:
    worker = work()
    keys = [chunk_key(i) for i in range(5)]
    before = worker.free()
    objects = [worker.object_of(key) for key in keys]
    done = threading.Semaphore(0)
    worker.backend.batched_submit_put_task(keys, objects, on_complete_callback=lambda key: done.release())
    for obj in objects:
        assert done.acquire(timeout=BOUND)
        obj.ref_count_down()
    asked = [*keys[:3], chunk_key(77), *keys[3:]]
    found = worker.backend.batched_get_blocking(asked)
    assert [obj is not None for obj in found] == [True] * 3 + [False] + [True] * 2
    for key, obj in zip(asked, found, strict=True):
        if obj is not None:
            assert bytes(obj.byte_array) == content(key, CHUNK)
            obj.ref_count_down()

    def run(coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(BOUND)

    assert run(worker.backend.batched_async_contains("id", asked)) == 3
    prefix = run(worker.backend.batched_get_non_blocking("id", asked))
    assert len(prefix) == 3
    for obj in prefix:
        obj.ref_count_down()
    assert worker.free() == before, "what lay behind the gap was not given back"
    assert run(worker.connector.exists(keys[0]))
    assert worker.connector.exists_sync(keys[0])
    assert len(run(worker.connector.list())) == 5
    assert worker.backend.remove(keys[0])
    assert not worker.backend.contains(keys[0])
    assert run(worker.connector.ping()) == 0


def test_models_workers_tags_and_tenants_share_nothing(work: Callable[..., Worker]) -> None:
    worker = work()
    worker.put(chunk_key(1))
    for other in (chunk_key(1, model="demo-model"), chunk_key(1, worker=1), chunk_key(1, user="a")):
        assert not worker.backend.contains(other)
    assert not work({"weights": "declared:other"}).backend.contains(chunk_key(1))
    assert not work({"tenant": "b"}).backend.contains(chunk_key(1))
    assert work().backend.contains(chunk_key(1))


def test_a_damaged_chunk_is_none_and_leaks_nothing(work: Callable[..., Worker], tmp_path: Path) -> None:
    worker = work()
    worker.put(chunk_key(1))
    (page,) = [path for path in tmp_path.glob("*/*/*") if path.is_file()]
    data = bytearray(page.read_bytes())
    data[200] ^= 1
    page.write_bytes(data)
    before = worker.free()
    assert not worker.comes_back(chunk_key(1))
    assert worker.free() == before
    worker.put(chunk_key(1))
    assert worker.comes_back(chunk_key(1))


def test_a_store_that_fails_is_counted(work: Callable[..., Worker], tmp_path: Path) -> None:
    options = {"inner": "file", "root": str(tmp_path), "fail": 1.0}
    worker = work({"backend": "fault", "options": options})
    before = worker.free()
    obj = worker.object_of(chunk_key(1))
    with pytest.raises(Exception, match="not stored"):
        worker.backend.submit_put_task(chunk_key(1), obj).result(BOUND)
    obj.ref_count_down()
    assert worker.backend.put_failed_count == 1
    assert not worker.backend.contains(chunk_key(1))
    assert not worker.comes_back(chunk_key(1))
    assert worker.free() == before


def test_a_read_that_lmcache_gave_up_writes_nowhere(work: Callable[..., Worker], held_stores: ModuleType) -> None:
    worker = work({**held_stores.CONFIG, "timeout": 30.0}, blocking_timeout_secs=1)
    store = held_stores.HeldStore.opened[-1]
    worker.put(chunk_key(1))
    before = worker.free()
    store.held.add("batch_get")
    assert not worker.comes_back(chunk_key(1))
    assert store.entered.acquire(timeout=BOUND)
    wait_for(lambda: worker.free() == before)
    taken = worker.object_of(chunk_key(2))  # the same memory, in other hands
    store.release.set()
    assert store.returned.acquire(timeout=BOUND)
    assert bytes(taken.byte_array) == content(chunk_key(2), CHUNK)
    taken.ref_count_down()


def test_a_write_keeps_its_memory_until_the_store_lets_go(
    work: Callable[..., Worker], held_stores: ModuleType
) -> None:
    worker = work({**held_stores.CONFIG, "hold": 600.0})
    store = held_stores.HeldStore.opened[-1]
    before = worker.free()
    store.held.add("batch_set")
    obj = worker.object_of(chunk_key(1))
    future = worker.backend.submit_put_task(chunk_key(1), obj)
    obj.ref_count_down()
    assert store.entered.acquire(timeout=BOUND)
    wait_for(lambda: worker.connector.session.ledger.outcomes("set").get("timeout"))
    assert worker.free() == before - 1, "LMCache could reuse memory that the store reads"
    assert not future.done()
    store.release.set()
    with pytest.raises(Exception, match="timeout"):
        future.result(BOUND)
    wait_for(lambda: worker.free() == before)


def test_a_read_waits_for_memory_without_holding_up_the_loop(work: Callable[..., Worker], loop: Any) -> None:
    worker = work()
    worker.put(chunk_key(1))
    taken = worker.take_all()
    reading = asyncio.run_coroutine_threadsafe(worker.connector.get(chunk_key(1)), loop)
    assert asyncio.run_coroutine_threadsafe(worker.connector.exists(chunk_key(1)), loop).result(BOUND)
    assert not reading.done()
    for obj in taken:
        obj.ref_count_down()
    found = reading.result(BOUND)
    assert bytes(found.byte_array) == content(chunk_key(1), CHUNK)
    found.ref_count_down()


@pytest.mark.parametrize(
    ("given", "more", "says"),
    [
        ({"weights": ""}, {}, "model_path"),
        ({"backend": "fil"}, {}, "did you mean 'file'"),
        ({"wait": 3}, {}, "unknown option 'wait'"),
        ({}, {"remote_serde": "cachegen"}, "set it to naive"),
        ({}, {"use_layerwise": True}, "set it to false"),
    ],
)
def test_a_bad_configuration_stops_the_start(
    work: Callable[..., Worker], given: dict[str, Any], more: dict[str, Any], says: str
) -> None:
    with pytest.raises(IrrecoverableException, match=says):
        work(given, **more)


def test_a_warning_where_chunk_hashes_do_not_last(
    work: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from hicache_core.adapters.lmcache import connector

    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    connector._told_of_hashes.cache_clear()
    with caplog.at_level(logging.WARNING, "hicache_core.adapters.lmcache"):
        work()
        work()
    assert caplog.text.count("PYTHONHASHSEED") == 1
    connector._told_of_hashes.cache_clear()
    caplog.clear()
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    work()
    assert "PYTHONHASHSEED" not in caplog.text
