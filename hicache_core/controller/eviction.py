"""Making room: what leaves L1 is demoted to L2 where it has a copy there, what leaves L2 is gone from this node.

Under write_back a page is copied to L2 only here, before it leaves L1, and with it the pages before it, so that
what reaches L3 begins at the beginning.
"""

from __future__ import annotations

from collections.abc import Callable

from hicache_core.controller.state import State
from hicache_core.tree.node import Node, StorageState

HOST_RELEASE_SHARE = 16
"""At least this part of L2 is freed at once when copies of pages in L1 must go; finding them is a walk."""


class Evictor:
    """Frees pages of both pools.

    back_up(nodes) copies nodes on one path to L2 and waits for it; set by the write path, used under write_back.
    unstored(node, pages) hears of nodes that leave L2 before they reached L3.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self.back_up: Callable[[list[Node]], bool] | None = None
        self.unstored: Callable[[Node], None] = lambda node: None

    def evict_device(self, pages: int) -> int:
        """Free at least `pages` pages of L1, if there are so many that nobody holds; how many it was."""
        tree, freed = self._state.tree, 0
        while freed < pages:
            unbacked: list[Node] = []
            freed_before = freed
            for node in tree.device_victims():
                if node.host is None and self.back_up is not None and self._state.host_pool is not None:
                    unbacked.append(node)
                else:
                    freed += self._release(node)
                if freed + sum(victim.pages for victim in unbacked) >= pages:
                    break
            for node in unbacked:
                freed += self._back_up_and_release(node)
            if freed == freed_before:
                break
        return freed

    def evict_host(self, pages: int) -> int:
        """Free at least `pages` pages of L2, if there are so many that nobody holds; how many it was."""
        state, freed = self._state, 0
        host = state.host_pool
        if host is None:
            return 0
        for node in state.tree.host_victims():
            if freed >= pages:
                break
            if state.session is not None and node.storage_state is not StorageState.STORED:
                self.unstored(node)
            host.free(state.tree.drop_host(node))
            freed += node.pages
            state.counters.evicted_host += node.pages
        return freed + self._release_copies(pages - freed) if freed < pages else freed

    def _back_up_and_release(self, node: Node) -> int:
        assert self.back_up is not None
        if node.removed or node.device is None or node.lock_ref or node.device_children:
            return 0
        if node.host is None:
            self.back_up(self._state.tree.unbacked_path(node))
        return self._release(node)

    def _release(self, node: Node) -> int:
        """Take one leaf off the device."""
        state = self._state
        if node.host is not None:
            slots = state.tree.demote(node)
            state.counters.demoted += len(slots)
        elif state.tree.droppable(node):
            freed = state.tree.drop(node)
            slots = freed.device
            state.counters.dropped += len(slots)
            if len(freed.host) and state.host_pool is not None:
                state.host_pool.free(freed.host)
                state.counters.evicted_host += len(freed.host)
        else:
            return 0
        state.device_pool.free(slots)
        return len(slots)

    def _release_copies(self, pages: int) -> int:
        """Give up L2 copies of pages that are in L1 too, least recently used first."""
        state, freed = self._state, 0
        host = state.host_pool
        assert host is not None
        candidates = [node for node in state.tree.walk() if self._may_release(node)]
        candidates.sort(key=lambda node: node.last_access)
        enough = max(pages, host.capacity // HOST_RELEASE_SHARE)
        for node in candidates:
            if freed >= enough:
                break
            slots = state.tree.release_host(node)
            host.free(slots)
            freed += len(slots)
        state.counters.host_copies_released += freed
        return freed

    def _may_release(self, node: Node) -> bool:
        """In both tiers, held by nobody, last of its path in L2, and not the only copy below L1 that L3 waits for."""
        if node.device is None or node.host is None or node.host_lock_ref or node.lock_ref or node.in_flight:
            return False
        if any(child.host is not None for child in node.children.values()):
            return False
        return self._state.session is None or node.storage_state is StorageState.STORED
