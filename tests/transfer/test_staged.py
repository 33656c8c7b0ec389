"""In which order the staged copier asks for events: what a GPU relies on, seen without one."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest

from hicache_core.errors import ConfigError
from hicache_core.pools.device import NumpyDevicePool
from hicache_core.pools.geometry import KVGeometry
from hicache_core.pools.host import make_host_pool
from hicache_core.transfer.engine import TransferEngine

pytest.importorskip("torch", reason="torch is an extra of the core")

from hicache_core.pools.device.torch_pool import TorchDevicePool
from hicache_core.transfer import cuda
from hicache_core.transfer.staged import StagedCopier

GEOMETRY = KVGeometry("mha", 4, 2, 4, dtype="bfloat16", page_size=2)
SLOTS = np.array([1, 3])


class Recorder:
    """An ordering that gives numbered events and writes down what is asked of it."""

    pinned = False

    def __init__(self) -> None:
        self.log: list[tuple] = []
        self.events = 0

    def fence(self):
        self.log.append(("fence",))
        return "fence"

    def side(self, fence, direction):
        self.log.append(("side", fence, direction))
        return nullcontext()

    def record(self, direction):
        self.events += 1
        self.log.append(("record", self.events))
        return self.events

    def synchronize(self, event):
        if event is not None:
            self.log.append(("synchronize", event))

    def wait_event(self, event):
        self.log.append(("wait", event))


@pytest.fixture
def pools():
    host = make_host_pool(GEOMETRY, "page_first", 4, memory=np.zeros(4 * GEOMETRY.page_nbytes, np.uint8))
    return host, TorchDevicePool(GEOMETRY, 4)


def test_a_staging_buffer_of_a_load_is_refilled_only_after_its_event(pools):
    order = Recorder()
    copier = StagedCopier(*pools, order)
    fence = copier.fence()
    events = [copier.load_layer(layer, SLOTS, SLOTS, fence) for layer in range(4)]
    copier.finish_load()
    side = ("side", "fence", "load")
    assert events == [1, 2, 3, 4]
    assert order.log == [
        ("fence",),
        *(side, ("record", 1), side, ("record", 2)),
        *(("synchronize", 1), side, ("record", 3)),
        *(("synchronize", 2), side, ("record", 4)),
        *(("synchronize", 3), ("synchronize", 4)),
    ]


def test_a_layer_of_a_backup_lands_after_its_event_and_while_the_next_is_on_its_way(pools):
    order = Recorder()
    copier = StagedCopier(*pools, order)
    copier.backup(SLOTS, SLOTS, "fence")
    assert order.log == [
        *(("side", "fence", "backup"), ("record", 1)),
        *(("record", 2), ("synchronize", 1), ("record", 3), ("synchronize", 2)),
        *(("record", 4), ("synchronize", 3), ("synchronize", 4)),
    ]


def test_the_engine_waits_for_the_event_of_a_layer(pools, monkeypatch):
    order = Recorder()
    host, device = pools
    monkeypatch.setattr(cuda, "Synchronous", lambda: order)
    monkeypatch.setattr(device, "_bytes", None)
    engine = TransferEngine(host, device)
    load = engine.submit_load([(SLOTS, SLOTS)])
    assert load.wait(30)
    assert load.error is None
    engine.wait_layer(load.producer, 2)
    assert order.log[-1] == ("wait", 3)
    assert engine.close()


def test_a_device_without_bytes_or_tensors_is_refused(pools, monkeypatch):
    device = NumpyDevicePool(GEOMETRY, 4)
    monkeypatch.setattr(device, "byte_arrays", lambda: None)
    with pytest.raises(ConfigError, match="NumpyDevicePool has neither"):
        TransferEngine(pools[0], device)
