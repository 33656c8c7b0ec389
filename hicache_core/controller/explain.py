"""Page by page: which tiers have it, or why none has."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hicache_core.controller.reasons import Reason, Tier
from hicache_core.controller.state import State
from hicache_core.tree.key import TreeKey
from hicache_core.tree.node import Node, StorageState


class PageExplanation(msgspec.Struct, frozen=True):
    """One page of a prefix."""

    page: int
    """Position in the sequence, from 0."""
    page_hash: str
    tiers: tuple[str, ...]
    """Tiers that have it: device, host, storage."""
    reason: str = ""
    """Why no tier has it; or, where only L1 or L2 has it, why L3 does not."""
    state: str = ""
    """What is under way: `backing_up` (L1 → L2), `storing` (L2 → L3), `waiting` (L3 did not take it yet)."""


class Explanation(msgspec.Struct, frozen=True):
    """A prefix, page by page. A request is served the leading pages that any tier has: `usable_pages`."""

    page_size: int
    pages: tuple[PageExplanation, ...]

    @property
    def usable_pages(self) -> int:
        """Pages before the first that no tier has."""
        return next((page.page for page in self.pages if not page.tiers), len(self.pages))

    @property
    def ended(self) -> str:
        """Why the usable prefix ends where it does; empty where all of it is usable."""
        usable = self.usable_pages
        return self.pages[usable].reason if usable < len(self.pages) else ""


def explain(state: State, key: TreeKey, hashes: Sequence[str], timeout: float) -> Explanation:
    """What each tier has of this key. Asks L3 for every page, at most `timeout` seconds; changes nothing."""
    nodes = [node for node, pages in state.tree.lookup(key) for _ in range(pages)]
    stored, absent = _ask_storage(state, hashes, timeout)
    pages = []
    for position, page_hash in enumerate(hashes):
        node = nodes[position] if position < len(nodes) else None
        tiers = _local_tiers(node)
        reason = ""
        if stored[position]:
            tiers.append(Tier.STORAGE.value)
        else:
            reason = (Reason.NEVER_STORED if page_hash in state.unstored else absent).value
        pages.append(PageExplanation(position, page_hash, tuple(tiers), reason, _under_way(node)))
    return Explanation(state.page_size, tuple(pages))


def _ask_storage(state: State, hashes: Sequence[str], timeout: float) -> tuple[list[bool], Reason]:
    session = state.session
    if session is None:
        return [False] * len(hashes), Reason.NO_STORAGE
    stored = session.contains(hashes, timeout=timeout)
    return stored, Reason.BREAKER_OPEN if session.breakers["read"].blocked else Reason.MISS


def _local_tiers(node: Node | None) -> list[str]:
    if node is None:
        return []
    held = ((Tier.DEVICE, node.device), (Tier.HOST, node.host))
    return [tier.value for tier, slots in held if slots is not None]


def _under_way(node: Node | None) -> str:
    if node is None:
        return ""
    if node.write_pending is not None:
        return "backing_up"
    words = {StorageState.QUEUED: "storing", StorageState.FAILED: "waiting"}
    return words.get(node.storage_state, "")
