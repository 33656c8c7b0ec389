"""A device pool in ordinary memory, for replay, tools and tests: no torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hicache_core.errors import ConfigError
from hicache_core.pools.device.base import DevicePool, gather_pages, scatter_pages
from hicache_core.pools.geometry import KVGeometry
from hicache_core.pools.pages import Bytes
from hicache_core.pools.sizing import check_capacity
from hicache_core.types import Slots

_BITS = {"bfloat16": np.uint16, "float8_e4m3fn": np.uint8, "float8_e5m2": np.uint8}
"""Dtypes that numpy does not have, and the integers that carry their bits."""


class NumpyDevicePool(DevicePool):
    """Pages in numpy arrays. Of dtypes numpy lacks (bfloat16, float8) `k` and `v` give the bits as integers.

    Raises CapacityError, with the numbers, where there is not so much memory.
    """

    def __init__(self, geometry: KVGeometry, num_pages: int) -> None:
        check_device_capacity(geometry, num_pages)
        super().__init__(geometry, num_pages)
        shape = (geometry.layer_num, num_pages, geometry.page_size, geometry.head_num)
        self._bytes = tuple(np.zeros((*shape, row), dtype=np.uint8) for row in geometry.row_bytes)
        dtype = np.dtype(_BITS.get(geometry.dtype, geometry.dtype))
        self._arrays: tuple[npt.NDArray[Any], ...] = tuple(array.view(dtype) for array in self._bytes)

    def k(self, layer: int) -> npt.NDArray[Any]:
        """See DevicePool.k; a view."""
        layer_array: npt.NDArray[Any] = self._arrays[0][layer]
        return layer_array

    def v(self, layer: int) -> npt.NDArray[Any]:
        """See DevicePool.v; a view."""
        if self.geometry.kind == "mha":
            values: npt.NDArray[Any] = self._arrays[1][layer]
            return values
        latent: npt.NDArray[Any] = self.k(layer)[..., : latent_dim(self.geometry)]
        return latent

    def byte_arrays(self) -> tuple[Bytes, ...]:
        """See DevicePool.byte_arrays."""
        return self._bytes

    def read_pages(self, slots: Slots) -> Bytes:
        """See DevicePool.read_pages."""
        self._check(slots)
        return gather_pages(self._bytes, slots, self.page_nbytes)

    def write_pages(self, slots: Slots, pages: Bytes) -> None:
        """See DevicePool.write_pages."""
        self._check_pages(slots, pages)
        scatter_pages(self._bytes, slots, pages)


def check_device_capacity(geometry: KVGeometry, num_pages: int) -> None:
    """Raise CapacityError where a device pool in ordinary memory would not fit.

    The system gives such memory without having it, and ends the process later, where it is touched.
    """
    check_capacity(
        geometry.page_nbytes * num_pages,
        what="device pool",
        reserve=0,
        mend=f"Ask for fewer than {num_pages:,} pages of {geometry.page_nbytes:,} bytes.",
    )


def latent_dim(geometry: KVGeometry) -> int:
    """Elements of an MLA vector before its rope part. Raises ConfigError where rope_dim is not known."""
    if geometry.rope_dim is None:
        raise ConfigError("the geometry does not name rope_dim, so the latent part of an MLA vector is not known")
    return geometry.head_dim - geometry.rope_dim
