"""Locks and marks: what may not be reclaimed."""

from __future__ import annotations

from collections.abc import Sequence

from hicache_core.errors import MisuseError
from hicache_core.tree.base import TreeState
from hicache_core.tree.node import Node


class HostLock:
    """Receipt for a host lock. When a locked node is split, the receipt holds both halves."""

    __slots__ = ("nodes", "released")

    def __init__(self, node: Node) -> None:
        self.nodes = [node]
        """What the lock covers, top down."""
        self.released = False


class Locking(TreeState):
    """Device locks, host locks, copies in flight."""

    def inc_lock(self, node: Node) -> None:
        """Keep the whole path down to `node` on the device, until `dec_lock(node)`.

        Survives splits: the lower half stays `node`, the upper half is on its path. Raises MisuseError for a node
        that has been removed.
        """
        locked: Node | None = self._live(node)
        while locked is not None:
            locked.lock_ref += 1
            if locked.lock_ref == 1:
                if locked.device is not None:
                    self._device_evictable -= locked.pages
                    self._device_protected += locked.pages
                self._device_queue.discard(locked)
                self._host_queue.discard(locked)
            locked = locked.parent

    def dec_lock(self, node: Node) -> None:
        """Give one lock back. Raises MisuseError where there is none."""
        locked: Node | None = self._live(node)
        if locked is None or not locked.lock_ref:
            self._refresh(node)
            raise MisuseError(f"{node!r} is not locked")
        while locked is not None:
            parent = locked.parent
            locked.lock_ref -= 1
            if not locked.lock_ref:
                if locked.device is not None:
                    self._device_protected -= locked.pages
                    self._device_evictable += locked.pages
                self._refresh(locked)
            locked = parent

    def inc_host_lock(self, node: Node) -> HostLock:
        """Keep the host copy of `node`, and `node` itself, until the receipt is given back."""
        live = self._live(node)
        receipt = HostLock(live)
        live.host_lock_ref += 1
        if live.host_locks is None:
            live.host_locks = []
        live.host_locks.append(receipt)
        self._host_queue.discard(live)
        return receipt

    def dec_host_lock(self, receipt: HostLock) -> None:
        """Give a host lock back. Raises MisuseError for a receipt that was given back before."""
        if receipt.released:
            raise MisuseError(f"the host lock on {receipt.nodes!r} was given back before")
        receipt.released = True
        for node in receipt.nodes:
            assert node.host_locks is not None
            node.host_locks.remove(receipt)
            node.host_lock_ref -= 1
            if not node.host_lock_ref:
                node.host_locks = None
                self._refresh(node)

    # copies in flight: each holds a device lock on its path, so that nothing it reads or fills is reclaimed

    def begin_write(self, op_id: int, nodes: Sequence[Node]) -> None:
        """Mark `nodes` (on one path, top down) as read by an L1 → L2 copy until `end_write`.

        Raises MisuseError where a node is not on the device, has a host copy, or is being written already.
        """
        for node in nodes:
            if node.device is None or node.host is not None or node.write_pending is not None:
                raise MisuseError(f"{node!r} cannot be backed up: write {node.write_pending} in flight")
        self._check_chain(nodes)
        self._writes.begin(op_id, nodes)
        for node in nodes:
            node.write_pending = op_id
        self.inc_lock(nodes[-1])

    def writing(self, op_id: int) -> list[Node]:
        """The nodes that a write reads, top down; together they are the pages it began with, in order."""
        return self._writes.nodes(op_id)

    def end_write(self, op_id: int) -> list[Node]:
        """The copy is over, whichever way: marks and lock are taken off. Returns its nodes, top down."""
        nodes = self._writes.end(op_id)
        for node in nodes:
            node.write_pending = None
        self.dec_lock(nodes[-1])
        return nodes

    def begin_load(self, op_id: int, nodes: Sequence[Node]) -> None:
        """Mark `nodes` (on one path, top down) as filled by an L2 → L1 copy until `end_load`.

        Raises MisuseError where a node has no host copy, is on the device, or is being loaded already.
        """
        for node in nodes:
            if node.device is not None or node.host is None or node.load_pending is not None:
                raise MisuseError(f"{node!r} cannot be loaded: load {node.load_pending} in flight")
        self._check_chain(nodes)
        self._loads.begin(op_id, nodes)
        for node in nodes:
            node.load_pending = op_id
        self.inc_lock(nodes[-1])

    def loading(self, op_id: int) -> list[Node]:
        """The nodes that a load fills, top down; together they are the pages it began with, in order."""
        return self._loads.nodes(op_id)

    def end_load(self, op_id: int) -> list[Node]:
        """The copy is over, whichever way: marks and lock are taken off. Returns its nodes, top down.

        On success the caller hands each its slots with `set_device` before anything else happens to the tree.
        """
        nodes = self._loads.end(op_id)
        for node in nodes:
            node.load_pending = None
        self.dec_lock(nodes[-1])
        return nodes

    def in_flight(self) -> tuple[list[int], list[int]]:
        """Ids of the writes and of the loads in flight."""
        return self._writes.ids(), self._loads.ids()

    def _check_chain(self, nodes: Sequence[Node]) -> None:
        """Nodes of a copy must lie on one path, top down."""
        if not nodes:
            raise MisuseError("a copy needs at least one node")
        on_path = iter(self.path(self._live(nodes[-1])))
        if not all(any(node is other for other in on_path) for node in nodes):
            raise MisuseError(f"nodes of one copy must lie on one path, top down: {list(nodes)!r}")
