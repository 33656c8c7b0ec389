"""check_integrity finds every kind of damage."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hicache_core.errors import IntegrityError
from hicache_core.tree import HostLock, Node, RadixTree
from hicache_core.tree.components import owned

PAGE = 4


def tokens(*pages: int) -> list[int]:
    """One page of four equal ids for each number."""
    return [page for page in pages for _ in range(PAGE)]


class Scene:
    """A small tree with something of everything."""

    def __init__(self) -> None:
        self.tree = RadixTree(PAGE)
        self.top = self.tree.insert(tokens(1), [0]).last_node
        self.leaf = self.tree.insert(tokens(1, 2, 3), [0, 1, 2]).last_node
        self.host = self.tree.insert_host(tokens(1, 4), [7, 8]).last_node
        self.other = self.tree.insert(tokens(5), [5], extra_key="b").last_node
        self.tree.hashes(self.leaf)
        self.tree.inc_lock(self.other)


def rehang(scene: Scene) -> None:
    scene.leaf.parent = scene.other


def misfile(scene: Scene) -> None:
    scene.top.children[b"elsewhere"] = scene.top.children.pop(scene.leaf.key[: 4 * PAGE])


def unqueue(scene: Scene) -> None:
    scene.tree._device_queue._heap.clear()


def overqueue(scene: Scene) -> None:
    scene.tree._device_queue._entry[scene.leaf] = 10**9


def hide_leaf(scene: Scene) -> None:
    scene.tree._host_queue.members.clear()


def idle_root(scene: Scene) -> None:
    scene.tree._root(("idle", None))


def mark(name: str, value: object, node: str = "leaf") -> Callable[[Scene], None]:
    """Set one field of one node."""

    def damage(scene: Scene) -> None:
        target: Node = getattr(scene, node)
        setattr(target, name, value)

    return damage


def count(name: str) -> Callable[[Scene], None]:
    """Put one counter wrong."""

    def damage(scene: Scene) -> None:
        setattr(scene.tree, name, getattr(scene.tree, name) + 1)

    return damage


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (rehang, "points to"),
        (misfile, "filed under another page"),
        (idle_root, "idle and was not pruned"),
        (mark("key", b"123"), "3 bytes are not 2 pages"),
        (mark("device", None, "leaf"), "in no tier"),
        (mark("device", owned([4])), "are not 2 of its own"),
        (mark("device", owned([4, 4])), "device slot 4 belongs"),
        (mark("device", owned([0, 4])), "device slot 0 belongs"),
        (mark("host", owned([7, 9])), "host slot 7 belongs"),
        (mark("device", None, "top"), "on the device below"),
        (mark("device_children", 5, "top"), "counts 5 children"),
        (mark("hashes", ["00" * 32]), "has 1 hashes"),
        (mark("hashes", ["00" * 32] * 2), "not those of its tokens"),
        (mark("lock_ref", 1), "its children 1"),
        (mark("lock_ref", 0, "other"), "wrongly in|missing from"),
        (mark("host_lock_ref", 1), "1 host locks and 0 receipts"),
        (mark("write_pending", 3), "written but may be reclaimed"),
        (mark("load_pending", 3), "loaded but may be reclaimed"),
        (mark("write_pending", 3), "write marks"),
        (count("_node_count"), "node_count is"),
        (count("_device_evictable"), "device_evictable_pages is"),
        (count("_device_protected"), "device_protected_pages is"),
        (count("_host_pages"), "host_pages is"),
        (unqueue, "not in the heap"),
        (overqueue, "above its priority"),
        (hide_leaf, "missing from the host leaves"),
    ],
)
def test_damage_is_found(damage: Callable[[Scene], None], words: str) -> None:
    scene = Scene()
    scene.tree.check_integrity()
    damage(scene)
    with pytest.raises(IntegrityError, match=words):
        scene.tree.check_integrity()


def test_a_receipt_that_does_not_hold_its_node_is_found() -> None:
    scene = Scene()
    scene.leaf.host_lock_ref, scene.leaf.host_locks = 1, [HostLock(scene.top)]
    with pytest.raises(IntegrityError, match="does not hold it"):
        scene.tree.check_integrity()


def test_a_long_list_of_faults_is_cut() -> None:
    tree = RadixTree(PAGE)
    for page in range(30):
        tree.insert(tokens(page), [0])
    with pytest.raises(IntegrityError, match="… and 9 more"):
        tree.check_integrity()
