"""Every invariant of the tree, written down as a check."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from hicache_core.errors import IntegrityError
from hicache_core.keys import chain_seed, page_hashes
from hicache_core.tree.base import TreeState, is_device_leaf, is_host_leaf
from hicache_core.tree.marks import Marks
from hicache_core.tree.node import Node
from hicache_core.types import Slots

MOST_REPORTED = 20


def check(tree: TreeState) -> None:
    """Raise IntegrityError naming what does not hold."""
    nodes = list(tree.walk())
    parts: tuple[Iterable[str], ...] = (
        _structure(tree),
        *(_node(tree, node) for node in nodes),
        _slots(nodes, "device", lambda node: node.device),
        _slots(nodes, "host", lambda node: node.host),
        _counters(tree, nodes),
        _leaves(tree, nodes),
        _locks(tree, nodes),
        _marks(tree._writes, nodes, lambda node: node.write_pending),
        _marks(tree._loads, nodes, lambda node: node.load_pending),
        _hashes(tree, nodes),
    )
    faults = [fault for part in parts for fault in part]
    if faults:
        more = f"\n… and {len(faults) - MOST_REPORTED} more" if len(faults) > MOST_REPORTED else ""
        raise IntegrityError("the tree is broken:\n" + "\n".join(faults[:MOST_REPORTED]) + more)


def _structure(tree: TreeState) -> Iterator[str]:
    """Roots, links and keys."""
    for namespace, root in tree._roots.items():
        if root.namespace != namespace or root.parent is not None or root.key or root.pages:
            yield f"root {root!r} is not the empty prefix of {namespace}"
        if root.device is not None or root.host is not None:
            yield f"root {root!r} holds pages"
        if not (root.children or root.lock_ref or root.host_lock_ref):
            yield f"root {root!r} is idle and was not pruned"
    for parent in (*tree._roots.values(), *tree.walk()):
        for first, child in parent.children.items():
            if child.parent is not parent:
                yield f"{child!r} is a child of {parent!r} but points to {child.parent!r}"
            if child.key[: tree._page_bytes] != first:
                yield f"{child!r} is filed under another page than its first"
        on_device = sum(child.device is not None for child in parent.children.values())
        if parent.device_children != on_device:
            yield f"{parent!r} counts {parent.device_children} children on the device, has {on_device}"


def _node(tree: TreeState, node: Node) -> Iterator[str]:
    """What holds for each node by itself and with its parent."""
    if not node.pages or len(node.key) != node.pages * tree._page_bytes:
        yield f"{node!r}: {len(node.key)} bytes are not {node.pages} pages of {tree._page_bytes}"
    if node.device is None and node.host is None:
        yield f"{node!r} is in no tier"
    for slots in (node.device, node.host):
        if slots is not None and (len(slots) != node.pages or slots.flags.writeable or slots.base is not None):
            yield f"{node!r}: slots {slots!r} are not {node.pages} of its own"
    if node.hashes is not None and len(node.hashes) != node.pages:
        yield f"{node!r} has {len(node.hashes)} hashes"
    parent = node.parent
    if parent is not None and not parent.is_root and node.device is not None and parent.device is None:
        yield f"{node!r} is on the device below {parent!r}, which is not"
    if node.write_pending is not None and (node.device is None or not node.lock_ref):
        yield f"{node!r} is being written but may be reclaimed"
    if node.load_pending is not None and (node.host is None or not node.lock_ref):
        yield f"{node!r} is being loaded but may be reclaimed"


def _slots(nodes: list[Node], tier: str, slots_of: Callable[[Node], Slots | None]) -> Iterator[str]:
    """No slot belongs to two nodes, or twice to one."""
    owner: dict[int, Node] = {}
    for node in nodes:
        slots = slots_of(node)
        for slot in slots.tolist() if slots is not None else ():
            if slot in owner:
                yield f"{tier} slot {slot} belongs to {owner[slot]!r} and to {node!r}"
            owner[slot] = node


def _counters(tree: TreeState, nodes: list[Node]) -> Iterator[str]:
    """Counters equal a recount."""
    on_device = [node for node in nodes if node.device is not None]
    recount = {
        "node_count": len(nodes),
        "device_evictable_pages": sum(node.pages for node in on_device if not node.lock_ref),
        "device_protected_pages": sum(node.pages for node in on_device if node.lock_ref),
        "host_pages": sum(node.pages for node in nodes if node.host is not None),
    }
    for name, counted in recount.items():
        if getattr(tree, name) != counted:
            yield f"{name} is {getattr(tree, name)}, counted {counted}"


def _leaves(tree: TreeState, nodes: list[Node]) -> Iterator[str]:
    """Both leaf sets equal their definition, and the queues can find every leaf."""
    for word, queue, is_leaf in (
        ("device", tree._device_queue, is_device_leaf),
        ("host", tree._host_queue, is_host_leaf),
    ):
        leaves = {node for node in nodes if is_leaf(node)}
        for node in leaves ^ queue.members:
            yield f"{node!r} is {'missing from' if node in leaves else 'wrongly in'} the {word} leaves"
        for fault in queue.faults():
            yield f"{word} queue: {fault}"


def _locks(tree: TreeState, nodes: list[Node]) -> Iterator[str]:
    """A device lock counts on the whole path; a host lock has a receipt."""
    for node in (*tree._roots.values(), *nodes):
        below = sum(child.lock_ref for child in node.children.values())
        if node.lock_ref < below:
            yield f"{node!r} has {node.lock_ref} device locks, its children {below}"
        receipts = node.host_locks or []
        if node.host_lock_ref != len(receipts):
            yield f"{node!r} has {node.host_lock_ref} host locks and {len(receipts)} receipts"
        if any(receipt.released or node not in receipt.nodes for receipt in receipts):
            yield f"{node!r} has a receipt that does not hold it"


def _marks(marks: Marks, nodes: list[Node], mark_of: Callable[[Node], int | None]) -> Iterator[str]:
    """Marks on nodes and the list of copies agree."""
    marked = {node: mark for node in nodes if (mark := mark_of(node)) is not None}
    listed = {node: op_id for op_id in marks.ids() for node in marks.nodes(op_id)}
    if marked != listed:
        yield f"{marks.word} marks on nodes {marked} are not those of the copies in flight {listed}"


def _hashes(tree: TreeState, nodes: list[Node]) -> Iterator[str]:
    """Known hashes are those of the tokens from the root on."""
    for node in nodes:
        if node.hashes is None or len(node.key) != node.pages * tree._page_bytes:
            continue
        prior: bytes | None
        above = node.parent
        if above is not None and above.hashes:  # verified in its own turn
            data, prior = node.key, bytes.fromhex(above.hashes[-1])
        else:
            key = tree.key_of(node)
            data, prior = key.data, chain_seed(*key.namespace)
        if page_hashes(np.frombuffer(data, "<u4"), tree.page_size, prior=prior)[-node.pages :] != node.hashes:
            yield f"{node!r}: hashes are not those of its tokens"
