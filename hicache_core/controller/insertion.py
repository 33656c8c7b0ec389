"""Computed pages become the tree's: at a chunk's commit and at a request's end."""

from __future__ import annotations

import numpy as np

from hicache_core.controller.admission import Admission
from hicache_core.controller.backup import BackupPath
from hicache_core.controller.request import Request
from hicache_core.controller.state import State
from hicache_core.controller.write import WritePath
from hicache_core.tree.components import NO_SLOTS
from hicache_core.tree.key import TreeKey
from hicache_core.tree.node import Node
from hicache_core.types import Slots


class Insertion:
    """Inserts and starts what the write policy says."""

    def __init__(self, state: State, admission: Admission, write: WritePath, backup: BackupPath) -> None:
        self._state, self._admission, self._write, self._backup = state, admission, write, backup

    def commit(self, request: Request, pages: int) -> None:
        """The first `pages` pages of an admitted request are computed."""
        tree = self._state.tree
        pages = self._admission.usable_pages(request.key(pages), pages)
        if pages <= request.inserted_pages and request.counted_pages >= pages:
            return
        pages = max(pages, request.inserted_pages)
        result = tree.insert(request.key(pages), request.slots[:pages], priority=request.priority, count_hit=False)
        if len(result.duplicates):
            self._state.device_pool.free(result.duplicates)
            request.slots = np.concatenate((result.device_indices, request.slots[pages:]))
        for node in result.new_nodes:  # at most one, the end of the key
            if node.hashes is None:
                node.hashes = request.known_hashes(pages - node.pages, pages)
        tree.inc_lock(result.last_node)
        self._admission.unlock(request)
        request.last_node, request.inserted_pages = result.last_node, pages
        self._count_hit(result.last_node, pages, request.counted_pages)
        request.counted_pages = pages
        self._write.inserted(result.last_node)
        self._backup.used(result.last_node)

    def release(self, request: Request) -> None:
        """The request needs its pages no longer: its own are freed, the tree's unlocked."""
        own = request.slots[request.inserted_pages :]
        if len(own):
            self._state.device_pool.free(own)
        request.slots, request.inserted_pages = NO_SLOTS, 0
        self._admission.unlock(request)

    def insert(self, key: TreeKey, slots: Slots, priority: int) -> int:
        """Take over pages that belong to no request; pages that the tree had already (their slots are freed)."""
        tree = self._state.tree
        usable = self._admission.usable_pages(key, len(slots))
        if usable < len(slots):
            self._state.device_pool.free(slots[usable:])
            key = TreeKey(key.data[: usable * self._state.page_size * 4], key.namespace)
        result = tree.insert(key, slots[:usable], priority=priority)
        self._state.device_pool.free(result.duplicates)
        tree.inc_lock(result.last_node)
        try:
            self._write.inserted(result.last_node)
            self._backup.used(result.last_node)
        finally:
            tree.dec_lock(result.last_node)
        return result.prefix_pages

    def _count_hit(self, end: Node, pages: int, counted: int) -> None:
        """One hit for each node that this request has not counted yet: its chunks pass the first ones often."""
        node: Node | None = end
        while node is not None and pages > counted:
            node.hit_count += 1
            pages -= node.pages
            node = node.parent
