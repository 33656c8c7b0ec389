"""A device pool of torch tensors, on any device torch knows. The only pool module that imports torch."""

from __future__ import annotations

import numpy as np
import torch

from hicache_core.errors import ConfigError
from hicache_core.pools.device.base import DevicePool, gather_pages, scatter_pages
from hicache_core.pools.device.numpy_pool import check_device_capacity, latent_dim
from hicache_core.pools.geometry import KVGeometry
from hicache_core.pools.pages import Bytes
from hicache_core.types import Slots


class TorchDevicePool(DevicePool):
    """Pages in tensors: k(layer) and v(layer) are views [num_pages, page_size, head_num, dim] of one per part.

    On a CPU device the copies of the transfer engine see the tensors' memory as numpy bytes; elsewhere
    `byte_arrays()` is None and they go through torch. Raises ConfigError where torch lacks dtype or device,
    CapacityError where a pool on the CPU is larger than the memory that is there.
    """

    def __init__(self, geometry: KVGeometry, num_pages: int, device: str | torch.device = "cpu") -> None:
        if str(device).startswith("cpu"):
            check_device_capacity(geometry, num_pages)
        super().__init__(geometry, num_pages)
        dtype = getattr(torch, geometry.dtype, None)
        if not isinstance(dtype, torch.dtype):
            raise ConfigError(f"this torch ({torch.__version__}) has no dtype {geometry.dtype!r}")
        shape = (geometry.layer_num, num_pages, geometry.page_size, geometry.head_num)
        dims = [row // geometry.itemsize for row in geometry.row_bytes]
        try:
            self.tensors = tuple(torch.zeros((*shape, dim), dtype=dtype, device=device) for dim in dims)
        except (RuntimeError, AssertionError) as error:
            raise ConfigError(f"torch cannot make the device pool on {str(device)!r}: {error}") from error
        self.device = self.tensors[0].device
        self._bytes: tuple[Bytes, ...] | None = None
        if self.device.type == "cpu":
            self._bytes = tuple(tensor.view(torch.uint8).numpy() for tensor in self.tensors)

    def k(self, layer: int) -> torch.Tensor:
        """See DevicePool.k; a view."""
        return self.tensors[0][layer]

    def v(self, layer: int) -> torch.Tensor:
        """See DevicePool.v; a view."""
        if self.geometry.kind == "mha":
            return self.tensors[1][layer]
        return self.tensors[0][layer][..., : latent_dim(self.geometry)]

    def byte_arrays(self) -> tuple[Bytes, ...] | None:
        """See DevicePool.byte_arrays."""
        return self._bytes

    def byte_tensors(self) -> tuple[torch.Tensor, ...]:
        """The same as byte_arrays, as tensors on the pool's device."""
        return tuple(tensor.view(torch.uint8) for tensor in self.tensors)

    def read_pages(self, slots: Slots) -> Bytes:
        """See DevicePool.read_pages."""
        self._check(slots)
        if self._bytes is not None:
            return gather_pages(self._bytes, slots, self.page_nbytes)
        index = torch.from_numpy(np.ascontiguousarray(slots)).to(self.device)
        chosen = tuple(tensor.index_select(1, index).cpu().numpy() for tensor in self.byte_tensors())
        return gather_pages(chosen, np.arange(slots.size), self.page_nbytes)

    def write_pages(self, slots: Slots, pages: Bytes) -> None:
        """See DevicePool.write_pages."""
        self._check_pages(slots, pages)
        if self._bytes is not None:
            scatter_pages(self._bytes, slots, pages)
            return
        index = torch.from_numpy(np.ascontiguousarray(slots)).to(self.device)
        for tensor, part in zip(self.byte_tensors(), self._split(slots, pages), strict=True):
            tensor.index_copy_(1, index, torch.from_numpy(part).to(self.device))

    def _split(self, slots: Slots, pages: Bytes) -> tuple[Bytes, ...]:
        """Pages in the order of page_first as device arrays uint8[layer, n, page_size, head, row]."""
        geometry = self.geometry
        shape = (geometry.layer_num, slots.size, geometry.page_size, geometry.head_num)
        arrays = tuple(np.empty((*shape, row), dtype=np.uint8) for row in geometry.row_bytes)
        scatter_pages(arrays, np.arange(slots.size), pages)
        return arrays
