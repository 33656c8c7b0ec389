"""Putting pages in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hicache_core.errors import MisuseError
from hicache_core.keys import Tokens
from hicache_core.tree.base import TreeState
from hicache_core.tree.components import NO_SLOTS, joined, owned
from hicache_core.tree.key import TreeKey
from hicache_core.tree.node import Node, StorageState
from hicache_core.tree.results import HostInsertResult, InsertResult
from hicache_core.types import Slots


class Inserting(TreeState):
    """insert, insert_host, and the values that finished copies bring (set_host, set_device)."""

    def insert(
        self,
        key: TreeKey | Tokens,
        device_slots: npt.ArrayLike,
        *,
        extra_key: str | None = None,
        cache_salt: str | None = None,
        priority: int = 0,
        count_hit: bool = True,
    ) -> InsertResult:
        """Take over freshly computed pages.

        device_slots: int64[n], one per whole page of `key`; the slots of pages that the tree has on the device stay
        the caller's. Nodes that were in host memory only get their device value back. priority: raises that of
        every node passed. count_hit: add one to `hit_count` of every node passed, new ones included.
        Raises MisuseError where slots and pages differ in number.
        """
        resolved = self._resolve(key, extra_key, cache_salt)
        data, size = resolved.data, self._page_bytes
        slots = _checked(device_slots, len(data) // size)
        node: Node = self._root(resolved.namespace)
        now, offset, done, prefix = self._now(), 0, 0, 0
        parts: list[Slots] = []
        new: list[Node] = []
        filled: list[Node] = []
        while offset < len(data):
            child = node.children.get(data[offset : offset + size])
            if child is None:
                child = self._attach(node, data[offset:], now)
                new.append(child)
            elif not data.startswith(child.key, offset):
                child = self._split(child, self._common_pages(data, offset, child.key))
            if child.device is not None:
                prefix = done + child.pages
            else:
                self._give_device(child, owned(slots[done : done + child.pages]))
                if child.host is not None:
                    filled.append(child)
            assert child.device is not None
            parts.append(child.device)
            child.last_access = now
            child.hit_count += count_hit
            child.priority = max(child.priority, priority)
            node, offset, done = child, offset + len(child.key), done + child.pages
        self._after_insert(node)
        device = joined(parts)
        mine = slots[:prefix]
        return InsertResult(prefix, device, mine[mine != device[:prefix]], node, new, filled)

    def insert_host(
        self,
        key: TreeKey | Tokens,
        host_slots: npt.ArrayLike,
        hashes: Sequence[str] | None = None,
        *,
        start_page: int = 0,
        extra_key: str | None = None,
        cache_salt: str | None = None,
        priority: int = 0,
        storage_state: StorageState = StorageState.STORED,
    ) -> HostInsertResult:
        """Take over pages that a prefetch brought into host memory.

        key: the sequence from its start up to the last page that came. host_slots: int64[n - start_page], for the
        pages from `start_page` on; the pages before must be in the tree, else nothing is inserted (`anchored` is
        False). hashes: their page hashes, where known. storage_state: what nodes that take slots say of L3
        from now on, unless a write to it is queued.
        Raises MisuseError where slots, hashes and pages differ in number.
        """
        resolved = self._resolve(key, extra_key, cache_salt)
        pages = len(resolved.data) // self._page_bytes
        if not 0 <= start_page <= pages:
            raise MisuseError(f"start_page {start_page} is not in 0 … {pages}")
        slots = _checked(host_slots, pages - start_page)
        if hashes is not None and len(hashes) != len(slots):
            raise MisuseError(f"{len(hashes)} hashes for {len(slots)} pages")
        node, found = self._descend(resolved, start_page)
        if found < start_page:
            self._refresh(node)
            return HostInsertResult(0, slots, node, [], False)
        data, size, now = resolved.data, self._page_bytes, self._now()
        offset, done = start_page * size, 0
        duplicates: list[Slots] = []
        taken: list[Node] = []
        while offset < len(data):
            child = node.children.get(data[offset : offset + size])
            if child is None:
                child = self._attach(node, data[offset:], now)
            elif not data.startswith(child.key, offset):
                child = self._split(child, self._common_pages(data, offset, child.key))
            span = slice(done, done + child.pages)
            if child.host is None:
                child.host = owned(slots[span])
                self._host_pages += child.pages
                if child.storage_state is not StorageState.QUEUED:
                    child.storage_state = storage_state
                taken.append(child)
            else:
                duplicates.append(slots[span])
            if child.hashes is None and hashes is not None:
                child.hashes = list(hashes[span])
            child.last_access = now
            child.priority = max(child.priority, priority)
            node, offset, done = child, offset + len(child.key), done + child.pages
        self._after_insert(node)
        spare = joined(duplicates)
        return HostInsertResult(len(slots) - len(spare), spare, node, taken, True)

    def set_host(self, node: Node, host_slots: npt.ArrayLike) -> Slots:
        """A backup of `node` is complete: note where it lies. Returns the slots to free (all, if it had a copy)."""
        slots = _checked(host_slots, self._live(node).pages)
        if node.host is not None:
            return slots
        node.host = owned(slots)
        self._host_pages += node.pages
        return NO_SLOTS

    def set_device(self, node: Node, device_slots: npt.ArrayLike) -> Slots:
        """A load of `node` is complete: note where it lies. Returns the slots to free (all, if it was recomputed).

        Raises MisuseError where the parent is not on the device.
        """
        slots = _checked(device_slots, self._live(node).pages)
        if node.device is not None:
            return slots
        parent = node.parent
        if parent is None or not (parent.is_root or parent.device is not None):
            raise MisuseError(f"{node!r} cannot be on the device: its parent {parent!r} is not")
        self._give_device(node, owned(slots))
        self._refresh(node)
        self._refresh(parent)
        return NO_SLOTS

    def _attach(self, parent: Node, key: bytes, now: float) -> Node:
        """A new child, without a place in any tier yet."""
        child = Node(next(self._ids), key, len(key) // self._page_bytes, parent, now)
        parent.children[key[: self._page_bytes]] = child
        self._node_count += 1
        return child

    def _give_device(self, node: Node, slots: Slots) -> None:
        """Put a node on the device and count it."""
        assert node.parent is not None
        node.device = slots
        node.parent.device_children += 1
        if node.lock_ref:
            self._device_protected += node.pages
        else:
            self._device_evictable += node.pages

    def _descend(self, key: TreeKey, pages: int) -> tuple[Node, int]:
        """The node that ends after exactly `pages` pages (split if needed), or the last one before; and its pages."""
        node: Node = self._root(key.namespace)
        data, size, done = key.data, self._page_bytes, 0
        while done < pages:
            child = node.children.get(data[done * size : (done + 1) * size])
            if child is None:
                break
            common = min(self._common_pages(data, done * size, child.key), pages - done)
            if common < child.pages:
                child = self._split(child, common)
            node, done = child, done + child.pages
        return node, done

    def _after_insert(self, last: Node) -> None:
        """Leaf sets along the path that an insert has changed, and a little of the queues' deferred work."""
        node: Node | None = last
        while node is not None:
            parent = node.parent
            self._refresh(node)
            node = parent
        self._device_queue.settle()
        self._host_queue.settle()


def _checked(slots: npt.ArrayLike, pages: int) -> Slots:
    """Slots as int64[pages]."""
    array = np.ascontiguousarray(slots, dtype=np.int64)
    if array.shape != (pages,):
        raise MisuseError(f"{pages} pages need as many slots, got an array of shape {array.shape}")
    return array
