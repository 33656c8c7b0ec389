"""Engines small enough to run in milliseconds, and GGUF files made up for a test."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hicache_engine.engine import Engine
from hicache_engine.loading import LoadedModel, load_model
from hicache_engine.settings import EngineOptions

from hicache_core.config.model import HiCacheConfig

PAGE = 8
CHUNK = 32


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Any) -> tuple[int, bytes]:
    if isinstance(value, bool):
        return 7, struct.pack("<?", value)
    if isinstance(value, int):
        return 4, struct.pack("<I", value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, str):
        return 8, _string(value)
    parts = [_value(v) for v in value]
    return 9, struct.pack("<IQ", parts[0][0], len(parts)) + b"".join(raw for _, raw in parts)


def write_gguf(
    path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, tuple[Sequence[int], int, bytes]] | None = None
) -> Path:
    """tensors: name -> (shape in numpy order, GGML type, bytes)."""
    tensors = tensors or {}
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        kind, raw = _value(value)
        head += _string(key) + struct.pack("<I", kind) + raw
    data = b""
    for name, (shape, kind, raw) in tensors.items():
        data += bytes(-len(data) % 32)
        dims = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        head += _string(name) + dims + struct.pack("<IQ", kind, len(data))
        data += raw
    path.write_bytes(head + bytes(-len(head) % 32) + data)
    return path


@pytest.fixture(name="write_gguf")
def _write_gguf() -> Callable[..., Path]:
    return write_gguf


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Matrices this small gain nothing from a second thread, and wait for it where the machine is busy."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model() -> LoadedModel:
    return load_model("random", seed=1)


MakeEngine = Callable[..., Engine]


@pytest.fixture
def make_engine(model: LoadedModel) -> Iterator[MakeEngine]:
    """make_engine(pages=…, backend=…, options=…, max_running=…, tenant=…, **settings of the hierarchy) -> Engine.

    At the end each must be whole: every device page is free or in the tree, the ledger balances. dead_store: its L3
    takes nothing, so its writes cannot end.
    """
    made: list[tuple[Engine, bool]] = []

    def make(
        pages: int = 128,
        *,
        backend: str | None = None,
        options: Mapping[str, Any] | None = None,
        max_running: int = 8,
        tenant: str = "",
        other: LoadedModel | None = None,
        dead_store: bool = False,
        **settings: Any,
    ) -> Engine:
        settings = {"hicache_storage_prefetch_policy": "wait_complete", "prefetch_threshold": PAGE} | settings
        cache = HiCacheConfig(
            enable_hierarchical_cache=True,
            page_size=PAGE,
            hicache_storage_backend=backend,
            hicache_storage_backend_options=dict(options or {}),
            load_back_threshold=0,
            **settings,
        )
        chosen = EngineOptions(
            cache=cache, device_tokens=pages * PAGE, chunk=CHUNK, max_running=max_running, tenant=tenant
        )
        engine = chosen.build(other or model)
        made.append((engine, dead_store))
        return engine

    yield make
    for engine, dead in made:
        if not dead:
            assert engine.cache.drain(30), "copies or writes did not end"
            check_whole(engine)
        engine.close(0.2 if dead else 30.0)
        check_whole(engine)


def check_whole(engine: Engine) -> None:
    """An idle engine holds no page and no lock, and its books add up."""
    cache = engine.cache
    assert not engine.scheduler.busy
    cache.tree.check_integrity()
    engine.pool.check_integrity()
    assert engine.pool.available + cache.tree.device_pages == engine.pool.capacity
    assert cache.tree.device_protected_pages == 0
    assert cache.ledger.balanced(), cache.ledger.problems()
