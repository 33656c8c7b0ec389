"""Pools of pages: the device's (L1) and the host's (L2), the layouts between them, and the memory under them."""

from __future__ import annotations

from hicache_core.pools.allocator import SlotAllocator
from hicache_core.pools.device import DevicePool, NumpyDevicePool
from hicache_core.pools.geometry import KVGeometry
from hicache_core.pools.host import HostPool, make_host_pool
from hicache_core.pools.sizing import HostSize, size_host_pool
from hicache_core.pools.slots import expand

__all__ = [
    "DevicePool",
    "HostPool",
    "HostSize",
    "KVGeometry",
    "NumpyDevicePool",
    "SlotAllocator",
    "expand",
    "make_host_pool",
    "size_host_pool",
]
