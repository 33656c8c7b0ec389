"""A request takes its prefix: final match, load-back, and the books of both."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hicache_core.controller.eviction import Evictor
from hicache_core.controller.load import LoadPath
from hicache_core.controller.memory import take
from hicache_core.controller.reasons import Reason, Tier
from hicache_core.controller.request import CacheReport, Request, RequestState
from hicache_core.controller.state import State
from hicache_core.tree.components import NO_SLOTS
from hicache_core.tree.key import TreeKey
from hicache_core.tree.node import Node
from hicache_core.tree.results import MatchResult
from hicache_core.types import Slots


class LoadBack(NamedTuple):
    """What came of the pages that are in L2 only: their new device pages, or why there are none."""

    slots: Slots = NO_SLOTS
    refused: Reason | None = None


class Admission:
    """Matches, and admits requests."""

    def __init__(self, state: State, evictor: Evictor, load: LoadPath) -> None:
        self._state, self._evictor, self._load = state, evictor, load

    def match(self, key: TreeKey, *, touch: bool = True) -> MatchResult:
        """The longest prefix that L1 and L2 have, without device pages whose load failed."""
        tree = self._state.tree
        match = tree.match_prefix(key, touch=touch)
        if not self._load.has_failed:
            return match
        self._load.reap()
        spoilt = self._load.spoilt(tree.path(match.best_match_node))
        if spoilt is None:
            return tree.match_prefix(key, touch=False)
        above = spoilt.parent
        assert above is not None
        before = tree.path(above)
        device = [node.device for node in before if node.device is not None]
        slots = np.concatenate(device) if device else NO_SLOTS
        on_host = next((node for node in reversed(before) if node.host is not None), above)
        return MatchResult(slots, 0, above, on_host, above, tree.page_size)

    def usable_pages(self, key: TreeKey, pages: int) -> int:
        """How many of the first `pages` pages may be inserted: those before a page whose load failed."""
        if not self._load.has_failed:
            return pages
        self._load.reap()
        position = 0
        found = [node for node, _ in self._state.tree.lookup(key)]
        spoilt = self._load.spoilt(found)
        for node in found:
            if node is spoilt:
                return min(pages, position)
            position += node.pages
        return pages

    def admit(self, request: Request, quota: int | None) -> int:
        """Match, load back, lock; pages that are loaded. quota: device pages that the load-back may take, at most."""
        state = self._state
        tree = state.tree
        match = self.match(request.key(request.reusable_pages))
        end = match.last_device_node
        tree.inc_lock(end)
        loaded = self._load_back(match, quota) if match.host_hit_pages else LoadBack()
        if len(loaded.slots):
            tree.inc_lock(match.best_match_node)
            tree.dec_lock(end)
            end = match.best_match_node
        request.let_go(tree)
        request.slots = np.concatenate((match.device_indices, loaded.slots))
        request.prefix_pages = request.inserted_pages = len(request.slots)
        request.last_node = end
        request.state = RequestState.ADMITTED
        self._book(request, match, loaded)
        return len(loaded.slots)

    def _load_back(self, match: MatchResult, quota: int | None) -> LoadBack:
        """All the pages that are in L2 only, or none."""
        state, pages = self._state, match.host_hit_pages
        tree = state.tree
        if pages * state.page_size < state.config.load_back_threshold:
            return LoadBack(refused=Reason.BELOW_THRESHOLD)
        if quota is not None and pages > quota:
            return LoadBack(refused=Reason.DEVICE_CAPACITY)
        lock = tree.inc_host_lock(match.best_match_node)
        try:
            slots = take(state, state.device_pool, pages, self._evictor.evict_device)
            if slots is None:
                return LoadBack(refused=Reason.DEVICE_CAPACITY)
            self._load.queue(tree.loadable_path(match.best_match_node), slots)
            return LoadBack(slots)
        finally:
            tree.dec_host_lock(lock)

    def _book(self, request: Request, match: MatchResult, loaded: LoadBack) -> None:
        size, account = self._state.page_size, request.account
        device, host = match.device_pages, match.host_hit_pages
        fetched = request.storage_pages
        from_storage = _overlap(fetched, device, device + host)
        covered = _overlap(fetched, 0, device)
        gone = len(fetched) - from_storage - covered
        account.lost(Tier.STORAGE, Reason.COVERED, covered * size)
        account.lost(Tier.STORAGE, Reason.EVICTED, gone * size)
        account.found(Tier.DEVICE, device * size)
        account.used(Tier.DEVICE, device * size)
        account.found(Tier.HOST, (host - from_storage) * size)
        used_host, used_storage = (host - from_storage, from_storage) if len(loaded.slots) else (0, 0)
        account.used(Tier.HOST, used_host * size)
        account.used(Tier.STORAGE, used_storage * size)
        if loaded.refused is not None:
            account.lost(Tier.HOST, loaded.refused, (host - from_storage) * size)
            account.lost(Tier.STORAGE, loaded.refused, from_storage * size)
        request.storage_pages = range(0)
        recomputed = len(request) - request.prefix_pages * size
        self._state.ledger.admitted(len(request), recomputed)
        request.admitted_tokens = len(request)
        request.report = CacheReport(
            device=device * size,
            host=used_host * size,
            storage=used_storage * size,
            recomputed=recomputed,
            lost=_lost(request),
            ended=self._ended(request, loaded, gone),
        )

    def _ended(self, request: Request, loaded: LoadBack, gone: int) -> str:
        """Why the run of hits ended before the last page that may come from the cache."""
        if request.prefix_pages >= request.reusable_pages:
            return ""
        if loaded.refused is not None:
            return str(loaded.refused)
        if gone:
            return str(Reason.EVICTED)
        if request.ended is not None:
            return str(request.ended)
        reason = Reason.NO_STORAGE if self._state.session is None else Reason.MISS
        return str(reason)

    def retract(self, request: Request) -> None:
        """The admission's load failed: none of its prefix was of use."""
        report, account = request.report, request.account
        for tier, tokens in ((Tier.DEVICE, report.device), (Tier.HOST, report.host), (Tier.STORAGE, report.storage)):
            account.retract(tier, Reason.LOAD_FAILED, tokens)
        self._state.ledger.admitted(-request.admitted_tokens, -report.recomputed)

    def unlock(self, request: Request) -> None:
        """Let go of the request's prefix."""
        node: Node | None = request.last_node
        assert node is not None
        self._state.tree.dec_lock(node)
        request.last_node = None


def _overlap(pages: range, start: int, stop: int) -> int:
    return max(0, min(pages.stop, stop) - max(pages.start, start))


def _lost(request: Request) -> dict[str, int]:
    """Tokens by reason over all tiers; what a nearer tier served instead is not lost to the request."""
    lost: dict[str, int] = {}
    for book in request.account.books.values():
        for reason, tokens in book.lost.items():
            if reason is not Reason.COVERED:
                lost[reason.value] = lost.get(reason.value, 0) + tokens
    return lost
