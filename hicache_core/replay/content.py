"""What is in a page, computed from its hash: so that a page can be made, and judged, without keeping it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hicache_core.errors import ConfigError
from hicache_core.pools.device.base import DevicePool
from hicache_core.pools.geometry import KVGeometry
from hicache_core.types import Slots

_BLOCK_SEED = 0x48494341
_WORD = 8


def replay_geometry(page_bytes: int, page_tokens: int) -> KVGeometry:
    """A cache of pages of so many bytes and tokens: one head of bytes, two layers where the size allows it.

    Raises ConfigError for a size that cannot be divided so.
    """
    for layers in (2, 1):
        per_row = 2 * layers * page_tokens
        if page_bytes > 0 and page_bytes % math.lcm(per_row, _WORD) == 0:
            return KVGeometry("mha", layers, 1, page_bytes // per_row, dtype="uint8", page_size=page_tokens)
    step = math.lcm(2 * page_tokens, _WORD)
    raise ConfigError(
        f"page bytes must be a multiple of {step} (K and V of {page_tokens} tokens, in words of {_WORD} bytes), not "
        f"{page_bytes}"
    )


class PageContent:
    """Pages of `page_bytes` bytes: a fixed random block, combined word by word with 64 bits of the page's hash.

    No two places of a page are alike, so a page that is shifted, cut or mixed with another is as wrong as one that
    belongs to another hash.
    """

    def __init__(self, page_bytes: int) -> None:
        self._block = np.random.default_rng(_BLOCK_SEED).integers(0, 2**64, page_bytes // _WORD, dtype=np.uint64)

    def pages(self, hashes: Sequence[str]) -> npt.NDArray[np.uint8]:
        """The pages of these hashes: uint8[n, page_bytes]."""
        heads = bytes.fromhex("".join([page_hash[:16] for page_hash in hashes]))
        seeds = np.frombuffer(heads, np.uint64)
        return (seeds[:, None] ^ self._block[None, :]).view(np.uint8)

    def write(self, pool: DevicePool, slots: Slots, hashes: Sequence[str]) -> None:
        """Compute these pages."""
        pool.write_pages(slots, self.pages(hashes))

    def wrong(self, pool: DevicePool, slots: Slots, hashes: Sequence[str]) -> int:
        """How many of these pages hold anything but what their hashes say."""
        found = pool.read_pages(slots).view(np.uint64)
        return int((found != self.pages(hashes).view(np.uint64)).any(axis=1).sum())
