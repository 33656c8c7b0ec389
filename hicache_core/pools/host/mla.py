"""Host pool of MLA models: one latent-and-rope vector per token and layer."""

from __future__ import annotations

from typing import ClassVar

from hicache_core.pools.geometry import Kind
from hicache_core.pools.host.base import HostPool


class MLAHostPool(HostPool):
    """One part, or latent and rope as two in page_first_kv_split. All ranks of a TP group hold the same bytes."""

    kind: ClassVar[Kind] = "mla"
