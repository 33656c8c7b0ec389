"""LMCache's own storage manager, controllers and remote backend over our doors, on a CPU.

These tests need LMCache; `tools/peers/lmcache.sh` makes an environment for them, whose python runs them.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

HAS_LMCACHE = importlib.util.find_spec("lmcache") is not None
SET_UP = (
    "LMCache is not installed here: tools/peers/lmcache.sh, then .peers/lmcache/venv/bin/python -m pytest "
    "tests/engines/lmcache"
)
BOUND = 60.0
"""Seconds after which a wait has failed."""
SHAPE = (2, 2, 16, 32)
MODEL = "demo/model"

if HAS_LMCACHE:
    os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")
    os.environ.setdefault("LMCACHE_LOG_LEVEL", "ERROR")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what LMCache and torch say while they are imported
        import torch
        from lmcache.v1.distributed.api import GroupedObjectKeys, MemoryLayoutDesc, ObjectKey, PrefetchTaskSpec
        from lmcache.v1.distributed.config import (
            EvictionConfig,
            L1ManagerConfig,
            L1MemoryManagerConfig,
            StorageManagerConfig,
        )
        from lmcache.v1.distributed.l2_adapters.config import parse_args_to_l2_adapters_config
        from lmcache.v1.distributed.storage_manager import StorageManager

        import hicache_core.adapters.lmcache.connector  # noqa: F401 - imports all that would warn later


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here not in item.path.parents:
            continue
        if not HAS_LMCACHE:
            item.add_marker(pytest.mark.skip(reason=SET_UP))
            continue
        for what in ("ignore::DeprecationWarning", "ignore::FutureWarning"):  # LMCache's and torch's own
            item.add_marker(pytest.mark.filterwarnings(what))


def key_of(number: int, model: str = MODEL, rank: int = 0, group: int = 0, salt: str = "") -> Any:
    return ObjectKey(number.to_bytes(32, "big"), model, rank, group, salt)


def layout(shape: Sequence[int] = SHAPE, dtype: str = "float32") -> Any:
    return MemoryLayoutDesc([torch.Size(shape)], [getattr(torch, dtype)])


def bytes_of(key: Any, nbytes: int) -> bytes:
    """The KV bytes of a chunk: the same for the same key, in whatever process."""
    seed = int.from_bytes(key.chunk_hash[-8:], "big") + key.kv_rank * 7919 + key.object_group_id * 104729
    generator = torch.Generator().manual_seed(seed)
    return bytes(torch.randint(0, 256, (nbytes,), generator=generator, dtype=torch.uint8).numpy().tobytes())


class Server:
    """What LMCache's server does with its storage manager, without the server."""

    def __init__(self, params: dict[str, Any], **spec: Any) -> None:
        told = json.dumps(
            {
                "type": "plugin",
                "module_path": "hicache_core.adapters.lmcache",
                "class_name": "HiCacheL2Adapter",
                "adapter_params": params,
                **spec,
            }
        )
        memory = L1MemoryManagerConfig(size_in_bytes=16 << 20, use_lazy=False, init_size_in_bytes=16 << 20)
        self.manager = StorageManager(
            StorageManagerConfig(
                l1_manager_config=L1ManagerConfig(memory_config=memory),
                eviction_config=EvictionConfig(eviction_policy="LRU"),
                l2_adapter_config=parse_args_to_l2_adapters_config(argparse.Namespace(l2_adapter=[told])),
            )
        )
        self.adapter: Any = self.manager.l2_adapters()[0][1]
        self._count_submitted()
        self.open = True

    def put(self, keys: Sequence[Any], desc: Any = None) -> None:
        """Write into L1; the store controller then takes it to L2."""
        reserved = self.manager.reserve_write(list(keys), desc or layout())
        assert len(reserved) == len(keys)
        for key, obj in reserved.items():
            view = memoryview(obj.byte_array).cast("B")
            view[:] = bytes_of(key, len(view))
        self.written += len(keys)
        self.manager.finish_write(list(keys))

    def settle(self, bound: float = BOUND) -> None:
        """Wait until the store controller has nothing under way."""
        self.until(lambda: not self._busy(), bound)

    def _busy(self) -> bool:
        """The controller's own counts have a gap between taking keys and submitting them, so ours stand beside."""
        counted = self.written == self.submitted and self.tasks == self.popped
        return not counted or bool(self.store_status()["in_flight_task_count"])

    def _count_submitted(self) -> None:
        self.written = self.submitted = self.tasks = self.popped = self.failed_stores = 0
        submit, pop = self.adapter.submit_store_task, self.adapter.pop_completed_store_tasks

        def counting(keys: list[Any], objects: list[Any]) -> int:
            task = submit(keys, objects)
            self.tasks += 1
            self.submitted += len(keys)
            return int(task)

        def counted() -> dict[int, Any]:
            done: dict[int, Any] = pop()
            self.popped += len(done)
            self.failed_stores += sum(not result.is_successful() for result in done.values())
            return done

        self.adapter.submit_store_task, self.adapter.pop_completed_store_tasks = counting, counted

    def store_status(self) -> dict[str, Any]:
        controllers = self.manager._store_controllers
        (controller,) = controllers.values() if isinstance(controllers, dict) else controllers
        return dict(controller.report_status())

    def until(self, there: Callable[[], object], bound: float = BOUND) -> None:
        pause, end = threading.Event(), time.monotonic() + bound
        while not there():
            assert time.monotonic() < end, "it never came to that"
            pause.wait(0.002)

    def answer(self, query: Callable[[int], Any], task: int) -> Any:
        """The result of a task that was submitted without a controller."""
        results: list[Any] = []

        def there() -> bool:
            results.append(query(task))
            return results[-1] is not None

        self.until(there)
        return results[-1]

    def store(self, keys: Sequence[Any], desc: Any = None) -> None:
        """Write, wait for L2, and empty L1."""
        self.put(keys, desc)
        self.settle()
        self.manager.clear(force=True)

    def prefetch(self, keys: Sequence[Any], desc: Any = None) -> list[int]:
        """Which keys came to L1, by their places."""
        group = GroupedObjectKeys(
            keys=list(keys), object_group_id=keys[0].object_group_id, layout_desc=desc or layout()
        )
        handle = self.manager.submit_prefetch_task(PrefetchTaskSpec(key_groups=[group]))
        assert self.manager.wait_prefetch_status(handle, BOUND), "the prefetch never ended"
        self.last = self.manager.query_prefetch_status(handle)
        return [i for i in range(len(keys)) if self.last.hit_cells[0].test(i)]

    def comes_back(self, keys: Sequence[Any], desc: Any = None) -> int:
        """How many leading keys are found, whose bytes are right then; L1 is empty again."""
        hits = self.prefetch(keys, desc)
        assert hits == list(range(len(hits))), "a prefix has no gaps"
        if hits:
            found = list(keys)[: len(hits)]
            with self.manager.read_prefetched_results(found) as objects:
                assert objects is not None
                for key, obj in zip(found, objects, strict=True):
                    got = bytes(memoryview(obj.byte_array).cast("B"))
                    assert got == bytes_of(key, len(got)), "a hit with other bytes"
            self.manager.finish_read_prefetched(found)
        self.manager.clear(force=True)
        return len(hits)

    def close(self) -> None:
        if self.open:
            self.open = False
            self.manager.close()


@pytest.fixture
def start() -> Iterator[Callable[..., Server]]:
    """Makes storage managers, and closes those that are left at the end."""
    running: list[Server] = []

    def make(params: dict[str, Any], **spec: Any) -> Server:
        for server in running:  # LMCache names the shared memory of its L1 by the process: one at a time
            server.close()
        running.append(Server(params, **spec))
        return running[-1]

    yield make
    for server in running:
        server.close()


def file_params(root: Path, **more: Any) -> dict[str, Any]:
    return {
        "backend": "file",
        "options": {"root": str(root)},
        "weights": "declared:demo-weights",
        "read_workers": 2,
        "write_workers": 2,
        **more,
    }


def fault_params(root: Path, faults: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The same with faults before the files."""
    return file_params(root, **more) | {"backend": "fault", "options": {"inner": "file", "root": str(root), **faults}}


def page_files(root: Path) -> list[Path]:
    return sorted(path for path in root.glob("*/*/*") if path.is_file())


def page_of(root: Path, key: Any) -> Path:
    """The file of a key's page, where only one context is in the store."""
    (found,) = [path for path in page_files(root) if key.chunk_hash.hex() in path.name]
    return found


@pytest.fixture
def held(
    start: Callable[..., Server], held_stores: types.ModuleType, tmp_path: Path
) -> Callable[..., tuple[Server, Any]]:
    """Makes a manager over a store that can be told to hang, with short deadlines."""

    def make(**changes: Any) -> tuple[Server, Any]:
        server = start(file_params(tmp_path) | held_stores.CONFIG | changes)
        return server, held_stores.HeldStore.opened[-1]

    return make


@pytest.fixture
def harness() -> Any:
    """The functions above, for tests that need more than one."""
    return types.SimpleNamespace(
        key_of=key_of,
        layout=layout,
        bytes_of=bytes_of,
        file_params=file_params,
        fault_params=fault_params,
        page_files=page_files,
        page_of=page_of,
        Server=Server,
        BOUND=BOUND,
    )
