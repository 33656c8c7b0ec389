"""What both kinds of pool are: a number of pages of one shape, and which of their slots are taken."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import numpy.typing as npt

from hicache_core.errors import ConfigError
from hicache_core.pools.allocator import SlotAllocator
from hicache_core.pools.geometry import KVGeometry
from hicache_core.types import Slots

Bytes = npt.NDArray[np.uint8]


class PagePool:
    """Slots are page slots. Raises ConfigError on a pool without pages."""

    tier: ClassVar[str]
    """`device` or `host`."""

    def __init__(self, geometry: KVGeometry, num_pages: int) -> None:
        if num_pages < 1:
            raise ConfigError(f"a {self.tier} pool needs at least one page, not {num_pages}")
        self.geometry = geometry
        self.num_pages = num_pages
        self.allocator = SlotAllocator(num_pages)

    @property
    def page_size(self) -> int:
        """Tokens per page."""
        return self.geometry.page_size

    @property
    def page_nbytes(self) -> int:
        """Bytes of a page over all layers, K and V."""
        return self.geometry.page_nbytes

    @property
    def available(self) -> int:
        """Free slots."""
        return self.allocator.available

    @property
    def capacity(self) -> int:
        """All slots."""
        return self.num_pages

    def alloc(self, count: int) -> Slots | None:
        """The `count` lowest free slots, or None where fewer are free."""
        return self.allocator.alloc(count)

    def free(self, slots: Slots) -> None:
        """Give slots back. Raises MisuseError on a foreign or free one."""
        self.allocator.free(slots)

    def check_integrity(self) -> None:
        """Raise IntegrityError where the allocator's counts do not add up."""
        self.allocator.check_integrity()
