"""Taking pages out. The tree says who is next; the controller decides what happens to it."""

from __future__ import annotations

from collections.abc import Iterator

from hicache_core.errors import MisuseError
from hicache_core.tree.base import TreeState, is_device_leaf, is_host_leaf
from hicache_core.tree.components import joined
from hicache_core.tree.node import Node
from hicache_core.tree.results import Freed
from hicache_core.types import Slots


class Evicting(TreeState):
    """Victims, demote, drop, drop_host, release_host, reset."""

    def device_victims(self) -> Iterator[Node]:
        """Device leaves in the order of the policy.

        The caller demotes, drops or backs up each before it asks for the next, or leaves it alone; parents that
        become leaves by it take their turn in the same iteration. O(log n) each, amortized.
        """
        return self._device_queue.drain()

    def host_victims(self) -> Iterator[Node]:
        """Host leaves in the order of the policy, to be given to `drop_host`; see `device_victims`."""
        return self._host_queue.drain()

    def demote(self, node: Node) -> Slots:
        """Take a backed-up device leaf off the device; it stays in host memory. Returns its device slots."""
        if not is_device_leaf(node) or node.host is None:
            raise MisuseError(f"{node!r} is not a backed-up device leaf ({_why_held(node)})")
        return self._leave_device(node)

    def droppable(self, node: Node) -> bool:
        """`node` is a device leaf without a host copy, and nothing below it is locked."""
        if not is_device_leaf(node) or node.host is not None or node.host_lock_ref:
            return False
        return not node.children or not any(below.host_lock_ref for below in self._subtree(node))

    def drop(self, node: Node) -> Freed:
        """Remove a device leaf without a host copy, and what hangs below it in host memory (usually nothing).

        Raises MisuseError where it is not `droppable`.
        """
        if not self.droppable(node):
            raise MisuseError(f"{node!r} cannot be dropped ({_why_held(node)})")
        host: list[Slots] = []
        for below in reversed(self._subtree(node)[1:]):
            assert below.host is not None
            host.append(below.host)
            self._host_pages -= below.pages
            self._remove(below)
        device = self._leave_device(node)
        self._remove(node)
        return Freed(device, joined(host))

    def drop_host(self, node: Node) -> Slots:
        """Remove a host leaf. Returns its host slots."""
        if node.removed or not is_host_leaf(node):
            raise MisuseError(f"{node!r} is not a host leaf ({_why_held(node)})")
        assert node.host is not None
        self._host_pages -= node.pages
        self._remove(node)
        return node.host

    def release_host(self, node: Node) -> Slots:
        """Give up the host copy of a node that is on the device too. Returns its host slots."""
        if node.device is None or node.host is None or node.host_lock_ref or node.in_flight:
            raise MisuseError(f"the host copy of {node!r} cannot be given up ({_why_held(node)})")
        slots, node.host = node.host, None
        self._host_pages -= node.pages
        return slots

    def reset(self, *, force: bool = False) -> Freed:
        """Remove everything. Returns all slots.

        Raises MisuseError while locks are held or copies in flight, unless `force`; then every node is removed all
        the same, and giving back a lock on one raises MisuseError.
        """
        nodes = list(self.walk())
        held = [node for node in nodes if node.lock_ref or node.host_lock_ref]
        if held and not force:
            raise MisuseError(f"{len(held)} nodes are locked or in flight, first {held[0]!r} ({_why_held(held[0])})")
        device = [node.device for node in nodes if node.device is not None]
        host = [node.host for node in nodes if node.host is not None]
        for node in nodes:
            node.parent = None
            node.children = {}
            node.device_children = node.lock_ref = node.host_lock_ref = 0
            node.write_pending = node.load_pending = None
            for receipt in node.host_locks or ():
                receipt.released = True
            node.host_locks = None
        for root in self._roots.values():
            root.children = {}
            root.device_children = root.lock_ref = root.host_lock_ref = 0
        self._roots.clear()
        self._node_count = self._device_evictable = self._device_protected = self._host_pages = 0
        self._device_queue.clear()
        self._host_queue.clear()
        self._writes.clear()
        self._loads.clear()
        return Freed(*(joined(slots) for slots in (device, host)))

    def _leave_device(self, node: Node) -> Slots:
        """Take an unlocked leaf off the device."""
        slots, parent = node.device, node.parent
        assert slots is not None
        assert parent is not None
        node.device = None
        parent.device_children -= 1
        self._device_evictable -= node.pages
        self._refresh(node)
        self._refresh(parent)
        return slots

    def _subtree(self, node: Node) -> list[Node]:
        """`node` and everything below it, parents first."""
        nodes = [node]
        for current in nodes:
            nodes.extend(current.children.values())
        return nodes


def _why_held(node: Node) -> str:
    """A node's state in a few words."""
    if node.removed:
        return "it has been removed"
    return (
        f"{node.device_children} of {len(node.children)} children on the device, {node.lock_ref} device locks, "
        f"{node.host_lock_ref} host locks, write {node.write_pending}, load {node.load_pending}"
    )
