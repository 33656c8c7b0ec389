"""What the paths of the controller share. One thread, the engine's, owns all of it."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from hicache_core.clock import Clock
from hicache_core.config.model import HiCacheConfig
from hicache_core.controller.ledger import TokenLedger
from hicache_core.controller.mailbox import Mailbox
from hicache_core.controller.negative import NegativeCache
from hicache_core.controller.sync import RankSync
from hicache_core.pools.device.base import DevicePool
from hicache_core.pools.host import HostPool
from hicache_core.transfer.engine import TransferEngine
from hicache_core.tree.radix import RadixTree
from hicache_core.types import Slots

if TYPE_CHECKING:
    from hicache_core.storage.handles import Handle
    from hicache_core.storage.session import StorageSession

UNSTORED_KEPT = 65536


class Counters(msgspec.Struct):
    """What the controller did since start. Pages, unless a name says otherwise."""

    backed_up: int = 0
    """L1 → L2."""
    loaded: int = 0
    """L2 → L1."""
    prefetched: int = 0
    """L3 → L2, pages that became part of the tree."""
    stored: int = 0
    """L2 → L3."""
    demoted: int = 0
    """Left L1, kept in L2."""
    dropped: int = 0
    """Left L1 without a copy in L2."""
    evicted_host: int = 0
    """Left L2."""
    host_copies_released: int = 0
    """L2 copies given up for pages that are in L1 too."""
    backup_skipped: int = 0
    """Not copied to L2 because there was no room."""
    backup_failed: int = 0
    load_failed: int = 0
    store_retries: int = 0
    """Calls to L3 that were made again for pages that a call before had not stored."""
    store_given_up: int = 0
    """Will not reach L3: too many attempts, no room in the dirty queue, or evicted from L2 before."""


class State:
    """Tree, pools, books, and the way to the threads that do I/O."""

    def __init__(
        self,
        config: HiCacheConfig,
        device_pool: DevicePool,
        host_pool: HostPool | None,
        transfer: TransferEngine | None,
        sync: RankSync,
        clock: Clock,
    ) -> None:
        self.config, self.clock, self.sync = config, clock, sync
        self.page_size = config.page_size
        self.device_pool, self.host_pool, self.transfer = device_pool, host_pool, transfer
        self.session: StorageSession | None = None
        self.tree = RadixTree(config.page_size, eviction=config.eviction_policy)
        self.mailbox = Mailbox(sync)
        self.ledger = TokenLedger()
        self.negative = NegativeCache(config.negative_cache_ttl, clock)
        self.counters = Counters()
        self.declined: Counter[str] = Counter()
        """Prefetches that were not started, by reason."""
        self.unstored: dict[str, None] = {}
        """Page hashes that this process had and will not bring to L3; bounded, oldest out first."""
        self.lent_host_pages = 0
        """L2 pages that nobody owns but calls of L3 that have not returned."""
        self._ids = itertools.count(1)

    @property
    def writes_storage(self) -> bool:
        """Whether this rank writes pages to L3. Of ranks that hold a page alike under one key (MLA, all layers) one
        does, the first; the others take its answer for theirs."""
        if self.session is None or self.sync.rank == 0:
            return self.session is not None
        identity = self.session.identity
        return identity.kind != "mla" or identity.layers != (0, identity.layer_num)

    def next_id(self) -> int:
        """A number that no other operation has."""
        return next(self._ids)

    def expired(self, deadline: float) -> bool:
        """Whether `deadline` on time.monotonic() has passed on any rank: all stop waiting in the same pass."""
        return bool(self.sync.maximum([int(time.monotonic() >= deadline)])[0])

    def free_when_returned(self, handle: Handle[Any], slots: Slots) -> None:
        """Free L2 pages that were lent to a call of L3, once nothing can touch them any more."""
        self.free_when_all_returned([handle], slots)

    def free_when_all_returned(self, handles: Sequence[Handle[Any]], slots: Slots) -> None:
        """Free L2 pages that were lent to several calls, once all of them have returned."""
        waiting = [handle for handle in handles if not handle.returned.is_set()]
        if not waiting:
            self._free_host(slots)
            return
        self.lent_host_pages += len(slots)
        left = len(waiting)

        def returned() -> None:
            nonlocal left
            left -= 1
            if not left:
                self.lent_host_pages -= len(slots)
                self._free_host(slots)

        for handle in waiting:
            handle.add_returned_callback(lambda _: self.mailbox.call(returned))

    def will_not_store(self, page_hashes: Iterable[str]) -> None:
        """Remember pages that will not reach L3, so that a later miss can be explained."""
        self.unstored.update(dict.fromkeys(page_hashes))
        while len(self.unstored) > UNSTORED_KEPT:
            del self.unstored[next(iter(self.unstored))]

    def _free_host(self, slots: Slots) -> None:
        assert self.host_pool is not None
        self.host_pool.free(slots)


def spans(lengths: list[int]) -> Iterator[slice]:
    """Consecutive slices of these lengths."""
    start = 0
    for length in lengths:
        yield slice(start, start + length)
        start += length
