"""What can only be seen on a GPU. Skipped, with the reason, where there is none."""

from __future__ import annotations

import numpy as np
import pytest

from hicache_core.pools.geometry import KVGeometry
from hicache_core.pools.host import make_host_pool
from hicache_core.transfer.engine import TransferEngine

torch = pytest.importorskip("torch", reason="torch is an extra of the core")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: streams cannot be tried")


def test_round_trip_over_side_streams(engines):
    from hicache_core.pools.device.torch_pool import TorchDevicePool

    geometry = KVGeometry("mha", 6, 2, 64, dtype="bfloat16", page_size=16)
    host = make_host_pool(geometry, "page_first", 32)
    device = TorchDevicePool(geometry, 32, device="cuda")
    content = np.random.default_rng(0).integers(0, 256, (16, device.page_nbytes), dtype=np.uint8)
    device.write_pages(np.arange(16), content)
    engine = TransferEngine(host, device)
    engines.append(engine)
    assert engine.submit_backup(np.arange(16), np.arange(16)).wait(30)
    load = engine.submit_load([(np.arange(16), np.arange(31, 15, -1))])
    for layer in range(6):
        engine.wait_layer(load.producer, layer, 30)
        assert torch.equal(device.k(layer)[31].view(torch.uint8), device.k(layer)[0].view(torch.uint8))
    assert load.wait(30)
    assert load.error is None
    assert (device.read_pages(np.arange(31, 15, -1)) == content).all()
    assert engine.close()
    del engine
    host.close()
