"""Pools of every kind and layout, filled, and engines that are always closed."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from hicache_core.pools.device import DevicePool, NumpyDevicePool
from hicache_core.pools.geometry import KVGeometry
from hicache_core.pools.host import HostPool, make_host_pool
from hicache_core.pools.layouts import LAYOUTS, pool_nbytes
from hicache_core.transfer import cpu
from hicache_core.transfer.backends import make_copier
from hicache_core.transfer.copier import Copier
from hicache_core.transfer.engine import TransferEngine

HOST_PAGES, DEVICE_PAGES = 9, 7


def make_device(kind: str, geometry: KVGeometry, pages: int = DEVICE_PAGES) -> DevicePool:
    """A numpy or torch device pool; skips the test where torch is not installed."""
    if kind == "numpy":
        return NumpyDevicePool(geometry, pages)
    pytest.importorskip("torch", reason="torch is an extra of the core")
    from hicache_core.pools.device.torch_pool import TorchDevicePool

    return TorchDevicePool(geometry, pages)


def random_device(kind: str, geometry: KVGeometry) -> DevicePool:
    """A device pool of random bytes."""
    pool = make_device(kind, geometry)
    random = np.random.default_rng(1)
    pool.write_pages(
        np.arange(pool.num_pages), random.integers(0, 256, (pool.num_pages, pool.page_nbytes), dtype=np.uint8)
    )
    return pool


@pytest.fixture(params=["numpy", "torch"])
def device(request, geometry) -> DevicePool:
    """A device pool of each kind."""
    return random_device(request.param, geometry)


@pytest.fixture(params=["numpy", "numpy runs", "numpy scattered", "torch", "torch staged"])
def copier(request, monkeypatch, geometry, host) -> tuple[Copier, DevicePool]:
    """A copier of every sort, and its device pool. On small pages both ways of copying must be asked for."""
    kind, _, way = request.param.partition(" ")
    device = random_device(kind, geometry)
    if way == "staged":
        from hicache_core.transfer.staged import StagedCopier, Synchronous

        return StagedCopier(host, device, Synchronous()), device
    if way:
        monkeypatch.setattr(cpu, "RUN_BYTES", 1 if way == "runs" else 1 << 40)
        monkeypatch.setattr(cpu, "TEMPORARY_BYTES", 64)
    return make_copier(host, device, "kernel"), device


@pytest.fixture
def host(geometry, layout) -> HostPool:
    """A host pool whose every byte is 0xAA, in memory that needs no closing."""
    memory = np.full(pool_nbytes(geometry, LAYOUTS[layout], HOST_PAGES), 0xAA, dtype=np.uint8)
    return make_host_pool(geometry, layout, HOST_PAGES, memory=memory)


@pytest.fixture
def engines() -> Iterator[list[TransferEngine]]:
    """Engines put here are closed at the end, and must leave no thread."""
    made: list[TransferEngine] = []
    yield made
    for engine in made:
        assert engine.close(timeout=30)
        assert engine.escaped == []
    assert not [thread for thread in threading.enumerate() if thread.name in ("hicache-d2h", "hicache-h2d")]
