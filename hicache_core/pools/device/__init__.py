"""Device pools (L1). The torch one lives in `torch_pool` and is imported where it is wanted."""

from __future__ import annotations

from hicache_core.pools.device.base import DevicePool
from hicache_core.pools.device.numpy_pool import NumpyDevicePool

__all__ = ["DevicePool", "NumpyDevicePool"]
