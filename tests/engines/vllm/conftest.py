"""vLLM's own TieringOffloadingManager over our tier, on a CPU.

These tests need vLLM; `tools/peers/vllm.sh` makes an environment for them, whose python runs them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hicache_core.adapters import vllm_plugin

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
        import vllm
        from vllm.v1.kv_offload import base
        from vllm.v1.kv_offload.factory import OffloadingSpecFactory
        from vllm.v1.kv_offload.tiering import base as tiering
        from vllm.v1.kv_offload.tiering import spec as _spec  # noqa: F401 - imports all that would warn later

    RELEASE = tuple(map(int, vllm.__version__.partition("+")[0].split(".")[:2]))
    if RELEASE >= (0, 27):
        from vllm.v1.kv_offload import config as offload


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here not in item.path.parents:
            continue
        if not HAS_VLLM:
            item.add_marker(pytest.mark.skip(reason=SET_UP))
            continue
        since = item.get_closest_marker("vllm_since")
        if since and since.args > RELEASE:
            wanted = ".".join(map(str, since.args))
            item.add_marker(pytest.mark.skip(reason=f"vLLM has this since {wanted}; this is {vllm.__version__}"))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "vllm_since(major, minor): skipped on earlier releases of vLLM")


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
        name = f"hicache-test-{os.getpid()}-{Engine.count}"
        if RELEASE >= (0, 27):
            config = offload_config(tier, chunks, row, name, **changes)
            self.manager = OffloadingSpecFactory.get_spec_cls(config.extra_config)(config).get_manager()
        else:
            told = engine_config_of_0_24(tier, chunks, row, name, **changes)
            self.manager = OffloadingSpecFactory.get_spec_cls(told[0])(*told).get_manager()
        self.lock: Any = getattr(self.manager, "lock", contextlib.nullcontext())  # it came with the poll thread
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
            if RELEASE >= (0, 27):
                self.manager.on_schedule_end(base.ScheduleEndContext(new_req_ids=[], preempted_req_ids=[]))
            else:
                self.manager.on_schedule_end()

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
            for key, chunk in zip(out.keys_to_store, rows_of(out.store_spec), strict=True):
                self.rows[int(chunk)][:] = bytes_of(key, self.row)
            if out.keys_to_store:
                self.manager.complete_store(out.keys_to_store, context)
        return out

    def store(self, keys: Sequence[bytes]) -> Any:
        """Offload and wait for the tier."""
        out = self.put(keys)
        self.settle()
        return out

    def reset(self) -> None:
        """What vLLM does when it sleeps or takes new weights: wait for all transfers, forget the primary tier."""
        with self.lock:
            self.manager.reset_cache()
            if hasattr(self.manager, "on_reset_flushed"):
                self.manager.on_reset_flushed()

    def evict(self) -> None:
        """Fill the primary tier with chunks of no interest, so that it holds none of the others."""
        count = len(self.rows)
        filling = [key_of(1 << 60 | Engine.count << 32 | self.requests << 16 | i) for i in range(count)]
        self.requests += 1
        self.store(filling)

    def lookup(self, key: bytes, context: Any = None) -> str:
        """HIT, MISS, RETRY, or HIT_PENDING (0.24: RETRY) while it is brought."""
        with self.lock:
            verdict = self.manager.lookup(key, context or self.context)
        return {True: "HIT", False: "MISS", None: "RETRY"}[verdict] if RELEASE < (0, 27) else str(verdict.name)

    def verdicts(self, key: bytes, context: Any = None) -> list[str]:
        """The answers until one is final, without repetition; HIT_PENDING is a RETRY too."""
        seen: list[str] = []

        def final() -> bool:
            verdict = self.lookup(key, context).replace("HIT_PENDING", "RETRY")
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
            found = self.rows[int(rows_of(spec)[0])].copy()
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
    return fitting(
        offload.OffloadingConfig,
        groups=tuple(
            fitting(offload.OffloadingGroupConfig, tokens_per_block=tokens, layer_names=names, group_id=i)
            for i, (tokens, names) in enumerate(groups)
        ),
        worker_kv_bytes_per_block=row // parallel["world_size"],
        enable_kv_cache_events=changes.get("events", False),
        extra_config=extra_config(tier, chunks * row),
        engine_id=engine_id,
        model=offload.OffloadingModelConfig(changes.get("model", "demo-model"), changes.get("dtype", "float16")),
        cache=offload.OffloadingCacheConfig(tokens_per_hash=16, blocks_per_chunk=1),
        parallel=fitting(offload.OffloadingParallelConfig, **parallel),
        replicated_layout=changes.get("replicated", False),
        kv_cache_layout=changes.get("kv_cache_layout"),
    )


def extra_config(tier: dict[str, Any], nbytes: int) -> dict[str, Any]:
    return {"spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": nbytes, "secondary_tiers": [tier]}


def fitting(made: Any, **fields: Any) -> Any:
    """An instance of a dataclass that has grown from release to release."""
    known = {field.name for field in dataclasses.fields(made)}
    return made(**{name: value for name, value in fields.items() if name in known})


def engine_config_of_0_24(
    tier: dict[str, Any], chunks: int, row: int, engine_id: str, **changes: Any
) -> tuple[Any, Any]:
    """What of the engine's and the KV cache's configuration 0.24 reads."""
    parallel = changes.get("parallel", {})
    world = parallel.get("world_size", 1)
    groups = changes.get("groups", ((16, ("layer0",)),))
    space = types.SimpleNamespace
    engine = space(
        instance_id=engine_id,
        kv_transfer_config=space(kv_connector_extra_config=extra_config(tier, chunks * row)),
        kv_events_config=space(enable_kv_cache_events=changes.get("events", False)),
        model_config=space(model=changes.get("model", "demo-model")),
        cache_config=space(
            block_size=16, cache_dtype=changes.get("dtype", "float16"), hash_block_size=16, enable_prefix_caching=True
        ),
        parallel_config=space(
            world_size=world,
            tensor_parallel_size=parallel.get("tp_size", 1),
            pipeline_parallel_size=1,
            prefill_context_parallel_size=1,
            decode_context_parallel_size=1,
        ),
    )
    cache = space(
        num_blocks=1,
        kv_cache_tensors=[space(size=row // world, block_stride=0)],
        kv_cache_groups=[
            space(kv_cache_spec=space(block_size=tokens), layer_names=list(names)) for tokens, names in groups
        ],
    )
    return engine, cache


def rows_of(spec: Any) -> Any:
    """The primary rows of a load or store spec."""
    return spec.chunk_ids if hasattr(spec, "chunk_ids") else spec.block_ids


@pytest.fixture
def start() -> Iterator[Callable[..., Engine]]:
    """Makes engines, and shuts down those that are left at the end."""
    running: list[Engine] = []
    vllm_plugin.register()

    def make(tier: dict[str, Any], **changes: Any) -> Engine:
        running.append(Engine(tier, **changes))
        return running[-1]

    yield make
    for engine in running:
        if engine.rows is not None:
            engine.shut_down()
    for left in Path("/dev/shm").glob(f"vllm_offload_hicache-test-{os.getpid()}-*"):
        left.unlink()  # releases before 0.33 leave their region behind where a tier refuses its configuration


@pytest.fixture
def tier_config(tmp_path: Path) -> dict[str, Any]:
    """A file store."""
    return file_tier(tmp_path / "store")


def file_tier(root: Path, **more: Any) -> dict[str, Any]:
    """The configuration of a tier over files, by the name that the entry point registers."""
    return {
        "type": "hicache",
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
    made = getattr(tiering, "TransferJob", None) or tiering.JobMetadata
    return made(job_id, list(keys), np.array(list(chunks), np.int32), promotion, context)


def page_files(root: Path) -> list[Path]:
    """The pages in a file store."""
    return sorted(path for path in root.glob("*/*/*") if path.is_file())


@pytest.fixture
def held(
    start: Callable[..., Engine], held_stores: types.ModuleType, tmp_path: Path
) -> Callable[..., tuple[Engine, Any]]:
    """Makes an engine over a store that can be told to hang, with short deadlines."""

    def make(**changes: Any) -> tuple[Engine, Any]:
        engine = start(file_tier(tmp_path) | held_stores.CONFIG | changes)
        return engine, held_stores.HeldStore.opened[-1]

    return make


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
        ROW=ROW,
        CHUNKS=CHUNKS,
        BOUND=BOUND,
    )
