"""vLLM's own TieringOffloadingManager over our tier, on a CPU.

These tests need vLLM; `tools/peers/vllm.sh` makes an environment for them, whose python runs them.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from hicache_core.types import Outcome

HAS_VLLM = importlib.util.find_spec("vllm") is not None
SET_UP = (
    "vLLM is not installed here: tools/peers/vllm.sh, then .peers/vllm/venv/bin/python -m pytest tests/engines/vllm"
)
ROW = 4096
CHUNKS = 4
BOUND = 60.0
"""Seconds after which a wait has failed."""

if HAS_VLLM:
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what vLLM and torch say while they are imported
        from vllm.v1.kv_offload import base
        from vllm.v1.kv_offload import config as offload
        from vllm.v1.kv_offload.factory import OffloadingSpecFactory
        from vllm.v1.kv_offload.tiering import base as tiering
        from vllm.v1.kv_offload.tiering import spec as _spec  # noqa: F401 - imports all that would warn later


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if not HAS_VLLM and here in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=SET_UP))


def key_of(number: int, group: int = 0) -> bytes:
    """An offload key: 32 bytes of block hash, 4 of the group."""
    return bytes(base.make_offload_key(number.to_bytes(32, "big"), group))


def bytes_of(key: bytes, row: int = ROW) -> Any:
    """The KV bytes of a chunk: the same for the same key, in whatever process."""
    return np.random.default_rng(int.from_bytes(key[-12:], "big") + 7).integers(0, 256, row, dtype=np.uint8)


class Engine:
    """What a vLLM scheduler does with its offloading manager, and the numpy rows that stand in for a GPU's copies.

    Use it on one thread, as a scheduler does. Every method takes the manager's lock as vLLM does.
    """

    count = 0

    def __init__(self, tier: dict[str, Any], *, chunks: int = CHUNKS, row: int = ROW, **changes: Any) -> None:
        Engine.count += 1
        self.row = row
        config = offload_config(tier, chunks, row, f"hicache-test-{os.getpid()}-{Engine.count}", **changes)
        self.manager = OffloadingSpecFactory.get_spec_cls(config.extra_config)(config).get_manager()
        self.lock = self.manager.lock
        self.tier = self.manager.secondary_tiers[0]
        self.rows: Any = np.asarray(self.manager.primary_tier.get_kv_memoryview()).view(np.uint8)
        self.requests = 0
        self.context = self.new_request()

    def new_request(self, name: str = "") -> Any:
        self.requests += 1
        context = base.ReqContext(req_id=name or f"request-{self.requests}")
        with self.lock:
            self.manager.on_new_request(context)
        return context

    def end_request(self, context: Any = None) -> None:
        with self.lock:
            self.manager.on_request_finished(context or self.context)

    def step(self) -> None:
        with self.lock:
            self.manager.on_schedule_end(base.ScheduleEndContext(new_req_ids=[], preempted_req_ids=[]))

    def settle(self, bound: float = BOUND) -> None:
        """Step until nothing is under way."""
        self.until(lambda: not self.manager.has_pending_work(), bound)

    def until(self, there: Callable[[], object], bound: float = BOUND) -> None:
        """Step until so; between steps a model would compute."""
        pause, end = threading.Event(), time.monotonic() + bound
        while not there():
            assert time.monotonic() < end, "it never came to that"
            self.step()
            pause.wait(0.001)

    def put(self, keys: Sequence[bytes], context: Any = None) -> Any:
        """Offload chunks; the cascade into the tier is then under way. None where all rows are pinned."""
        context = context or self.context
        with self.lock:
            out = self.manager.prepare_store(keys, context)
            if out is None:
                return None
            for key, chunk in zip(out.keys_to_store, out.store_spec.chunk_ids, strict=True):
                self.rows[int(chunk)][:] = bytes_of(key, self.row)
            if out.keys_to_store:
                self.manager.complete_store(out.keys_to_store, context)
        return out

    def store(self, keys: Sequence[bytes]) -> Any:
        """Offload and wait for the tier."""
        out = self.put(keys)
        self.settle()
        return out

    def evict(self) -> None:
        """Fill the primary tier with chunks of no interest, so that it holds none of the others."""
        count = len(self.rows)
        filling = [key_of(1 << 60 | Engine.count << 32 | self.requests << 16 | i) for i in range(count)]
        self.requests += 1
        self.store(filling)

    def lookup(self, key: bytes, context: Any = None) -> Any:
        with self.lock:
            return self.manager.lookup(key, context or self.context)

    def verdicts(self, key: bytes, context: Any = None) -> list[str]:
        """The names of the answers, without repetition, until one is final."""
        seen: list[str] = []

        def final() -> bool:
            verdict = self.lookup(key, context).name
            if seen[-1:] != [verdict]:
                seen.append(verdict)
            return verdict in ("HIT", "MISS")

        self.until(final)
        return seen

    def loaded(self, key: bytes, context: Any = None) -> Any:
        """A copy of the row of a key that is a HIT."""
        context = context or self.context
        with self.lock:
            spec = self.manager.prepare_load([key], context)
            found = self.rows[int(spec.chunk_ids[0])].copy()
            self.manager.complete_load([key], context)
        return found

    def comes_back(self, key: bytes) -> bool:
        """Whether it is found, in which case its bytes are right."""
        if self.verdicts(key)[-1] == "MISS":
            return False
        assert (self.loaded(key) == bytes_of(key, self.row)).all(), "a HIT with other bytes"
        return True

    def shut_down(self) -> None:
        self.rows = None  # or the region would stay mapped
        self.manager.shutdown()


def offload_config(tier: dict[str, Any], chunks: int, row: int, engine_id: str, **changes: Any) -> Any:
    """What vLLM's offloading connector tells the spec. changes: model, dtype, groups, parallel, events, canonical."""
    parallel = {
        "rank": 0,
        "world_size": 1,
        "tp_size": 1,
        "pp_size": 1,
        "pcp_size": 1,
        "dcp_size": 1,
        "data_parallel_index": 0,
        "data_parallel_size": 1,
        "data_parallel_rank_local": None,
        "is_parallelism_agnostic": False,
    }
    parallel |= changes.get("parallel", {})
    groups = changes.get("groups", ((16, ("layer0",)),))
    return offload.OffloadingConfig(
        groups=tuple(offload.OffloadingGroupConfig(tokens, names, i) for i, (tokens, names) in enumerate(groups)),
        worker_kv_bytes_per_block=row // parallel["world_size"],
        enable_kv_cache_events=changes.get("events", False),
        extra_config={
            "spec_name": "TieringOffloadingSpec",
            "cpu_bytes_to_use": row * chunks,
            "secondary_tiers": [tier],
        },
        engine_id=engine_id,
        model=offload.OffloadingModelConfig(changes.get("model", "demo-model"), changes.get("dtype", "float16")),
        cache=offload.OffloadingCacheConfig(tokens_per_hash=16, blocks_per_chunk=1),
        parallel=offload.OffloadingParallelConfig(**parallel),
        replicated_layout=changes.get("replicated", False),
        kv_cache_layout=changes.get("kv_cache_layout"),
    )


@pytest.fixture
def start() -> Iterator[Callable[..., Engine]]:
    """Makes engines, and shuts down those that are left at the end."""
    running: list[Engine] = []

    def make(tier: dict[str, Any], **changes: Any) -> Engine:
        running.append(Engine(tier, **changes))
        return running[-1]

    yield make
    for engine in running:
        if engine.rows is not None:
            engine.shut_down()


@pytest.fixture
def tier_config(tmp_path: Path) -> dict[str, Any]:
    """A file store, by the short name's module path."""
    return file_tier(tmp_path / "store")


def file_tier(root: Path, **more: Any) -> dict[str, Any]:
    """The configuration of a tier over files."""
    return {
        "type": "HiCacheTier",
        "module_path": "hicache_core.adapters.vllm",
        "backend": "file",
        "options": {"root": str(root)},
        "weights": "declared:demo-weights",
        "read_workers": 2,
        "write_workers": 2,
        **more,
    }


def fault_tier(root: Path, faults: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The same with faults before the files."""
    return file_tier(root, **more) | {"backend": "fault", "options": {"inner": "file", "root": str(root), **faults}}


def job_of(job_id: int, keys: Sequence[bytes], chunks: Sequence[int], *, promotion: bool, context: Any = None) -> Any:
    """A transfer job as the manager makes it, for a tier that is driven without one."""
    return tiering.TransferJob(job_id, list(keys), np.array(chunks, np.int32), promotion, context)


class HeldStore:
    """A store in memory. Calls of the hooks in `held` wait inside until `release` is set; `entered` counts them."""

    opened: ClassVar[list[HeldStore]] = []

    def __init__(self) -> None:
        self.pages: dict[str, bytes] = {}
        self.held: set[str] = set()
        self.release = threading.Event()
        self.entered = threading.Semaphore(0)
        self.fails: set[str] = set()
        HeldStore.opened.append(self)

    def _hold(self, hook: str) -> None:
        if hook in self.held:
            self.entered.release()
            assert self.release.wait(BOUND)
        if hook in self.fails:
            raise RuntimeError("the store has had enough")

    def batch_exists(self, keys: Sequence[str]) -> int:
        self._hold("batch_exists")
        return next((i for i, key in enumerate(keys) if key not in self.pages), len(keys))

    def batch_get(self, keys: Sequence[str], pages: Sequence[Any]) -> list[Outcome]:
        found = [self.pages.get(key) for key in keys]
        self._hold("batch_get")
        for data, page in zip(found, pages, strict=True):
            for buffer in page if data is not None else ():
                buffer[:], data = data[: len(buffer)], data[len(buffer) :]
        return [Outcome.MISS if data is None else Outcome.HIT for data in found]

    def batch_set(self, keys: Sequence[str], pages: Sequence[Any]) -> list[Outcome]:
        self._hold("batch_set")
        self.pages.update((key, b"".join(page)) for key, page in zip(keys, pages, strict=True))
        return [Outcome.STORED] * len(keys)

    def close(self) -> None:
        self.release.set()


STORES = types.ModuleType("hicache_vllm_test_stores")
STORES.HeldStore = HeldStore  # type: ignore[attr-defined]
sys.modules[STORES.__name__] = STORES
HELD_TIER = {
    "backend": "dynamic",
    "options": {"module": STORES.__name__, "class_name": "HeldStore"},
    "timeout": 0.2,
    "write_workers": 1,
    "read_workers": 1,
}


def page_files(root: Path) -> list[Path]:
    """The pages in a file store."""
    return sorted(path for path in root.glob("*/*/*") if path.is_file())


@pytest.fixture
def held(start: Callable[..., Engine], tmp_path: Path) -> Iterator[Callable[..., tuple[Engine, HeldStore]]]:
    """Makes an engine over a store that can be told to hang, with short deadlines."""

    def make(**changes: Any) -> tuple[Engine, HeldStore]:
        engine = start(file_tier(tmp_path) | HELD_TIER | changes)
        return engine, HeldStore.opened[-1]

    yield make
    for store in HeldStore.opened:
        store.release.set()
    HeldStore.opened.clear()


@pytest.fixture
def harness() -> Any:
    """The functions above, for tests that need more than one."""
    return types.SimpleNamespace(
        key_of=key_of,
        bytes_of=bytes_of,
        file_tier=file_tier,
        fault_tier=fault_tier,
        page_files=page_files,
        job=job_of,
        Engine=Engine,
        HeldStore=HeldStore,
        ROW=ROW,
        CHUNKS=CHUNKS,
        BOUND=BOUND,
    )
