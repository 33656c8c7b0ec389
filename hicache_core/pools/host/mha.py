"""Host pool of MHA and GQA models, K and V of equal or unequal head dims."""

from __future__ import annotations

from typing import ClassVar

from hicache_core.pools.geometry import Kind
from hicache_core.pools.host.base import HostPool
from hicache_core.pools.pages import Bytes


class MHAHostPool(HostPool):
    """K and V apart, each in the layout's order; adjacent, as one [2, …] array, where their rows are equal."""

    kind: ClassVar[Kind] = "mha"

    def k_bytes(self) -> Bytes:
        """K in the layout's shape with the row in bytes, e.g. page_first: uint8[token, layer, head, row]."""
        return self.part_bytes(0)

    def v_bytes(self) -> Bytes:
        """V in the layout's shape with the row in bytes."""
        return self.part_bytes(1)
