"""Locks and marks: what they hold, and that they survive splits."""

from __future__ import annotations

import pytest

from hicache_core.errors import MisuseError
from hicache_core.tree import Node, RadixTree

PAGE = 4


def tokens(*pages: int) -> list[int]:
    """One page of four equal ids for each number."""
    return [page for page in pages for _ in range(PAGE)]


@pytest.fixture
def tree() -> RadixTree:
    return RadixTree(PAGE)


@pytest.fixture
def node(tree: RadixTree) -> Node:
    """Four pages on the device."""
    return tree.insert(tokens(1, 2, 3, 4), [0, 1, 2, 3]).last_node


def host_only(tree: RadixTree) -> Node:
    """Four pages in host memory."""
    return tree.insert_host(tokens(1, 2, 3, 4), [0, 1, 2, 3]).last_node


def test_a_lock_protects_the_path(tree: RadixTree, node: Node) -> None:
    child = tree.insert(tokens(1, 2, 3, 4, 5), [0, 1, 2, 3, 4]).last_node
    tree.inc_lock(child)
    assert (tree.device_evictable_pages, tree.device_protected_pages) == (0, 5)
    assert list(tree.device_victims()) == []
    with pytest.raises(MisuseError, match="1 device locks"):
        tree.drop(child)
    tree.dec_lock(child)
    assert (tree.device_evictable_pages, tree.device_protected_pages) == (5, 0)
    assert list(tree.device_victims()) == [child]


def test_a_lock_survives_a_split(tree: RadixTree, node: Node) -> None:
    tree.inc_lock(node)
    upper = tree.match_prefix(tokens(1, 2)).best_match_node
    assert upper is not node
    assert upper.lock_ref == node.lock_ref == 1
    assert tree.device_protected_pages == 4
    tree.dec_lock(node)
    assert upper.lock_ref == node.lock_ref == 0
    tree.check_integrity()


def test_a_lock_not_held_cannot_be_given_back(tree: RadixTree, node: Node) -> None:
    with pytest.raises(MisuseError, match="is not locked"):
        tree.dec_lock(node)
    with pytest.raises(MisuseError, match="is not locked"):
        tree.dec_lock(RadixTree(PAGE).match_prefix(tokens(1)).best_match_node)
    tree.check_integrity()


def test_a_removed_node_cannot_be_locked(tree: RadixTree, node: Node) -> None:
    tree.drop(node)
    assert node.removed
    for take in (tree.inc_lock, tree.dec_lock, tree.inc_host_lock, tree.hashes, tree.namespace_of):
        with pytest.raises(MisuseError, match="removed"):
            take(node)


def test_a_host_lock_keeps_the_host_copy(tree: RadixTree, node: Node) -> None:
    tree.set_host(node, [5, 6, 7, 8])
    receipt = tree.inc_host_lock(node)
    with pytest.raises(MisuseError, match="1 host locks"):
        tree.release_host(node)
    tree.demote(node)
    assert list(tree.host_victims()) == []
    with pytest.raises(MisuseError, match="1 host locks"):
        tree.drop_host(node)
    tree.dec_host_lock(receipt)
    assert list(tree.host_victims()) == [node]
    with pytest.raises(MisuseError, match="given back before"):
        tree.dec_host_lock(receipt)


def test_a_host_lock_covers_both_halves_of_a_split(tree: RadixTree, node: Node) -> None:
    tree.set_host(node, [5, 6, 7, 8])
    receipt, other = tree.inc_host_lock(node), tree.inc_host_lock(node)
    third = tree.match_prefix(tokens(1, 2, 3)).best_match_node
    first = tree.match_prefix(tokens(1)).best_match_node
    assert receipt.nodes == [first, third, node]
    with pytest.raises(MisuseError, match="2 host locks"):
        tree.release_host(first)
    tree.dec_host_lock(receipt)
    assert [n.host_lock_ref for n in (first, third, node)] == [1, 1, 1]
    tree.dec_host_lock(other)
    assert tree.release_host(first).tolist() == [5]
    tree.check_integrity()


def test_an_unbacked_node_with_a_host_lock_is_not_dropped(tree: RadixTree, node: Node) -> None:
    receipt = tree.inc_host_lock(node)
    assert not tree.droppable(node)
    tree.dec_host_lock(receipt)
    assert tree.droppable(node)


def test_a_write_holds_what_it_reads_and_survives_a_split(tree: RadixTree, node: Node) -> None:
    tree.begin_write(7, [node])
    assert node.in_flight
    upper = tree.match_prefix(tokens(1, 2, 3)).best_match_node
    assert tree.writing(7) == [upper, node]
    assert tree.in_flight() == ([7], [])
    assert list(tree.device_victims()) == []
    assert [n.pages for n in tree.end_write(7)] == [3, 1]
    assert not upper.in_flight
    assert not node.in_flight
    assert list(tree.device_victims()) == [node]
    tree.check_integrity()


def test_a_load_holds_what_it_reads_and_survives_a_split(tree: RadixTree) -> None:
    node = host_only(tree)
    tree.begin_load(3, [node])
    assert list(tree.host_victims()) == []
    upper = tree.match_prefix(tokens(1)).best_match_node
    assert tree.loading(3) == [upper, node]
    nodes = tree.end_load(3)
    assert tree.set_device(nodes[0], [10]).tolist() == []
    assert tree.set_device(nodes[1], [11, 12, 13]).tolist() == []
    assert tree.match_prefix(tokens(1, 2, 3, 4)).device_indices.tolist() == [10, 11, 12, 13]
    tree.check_integrity()


def test_a_page_recomputed_during_its_load_stays(tree: RadixTree) -> None:
    node = host_only(tree)
    tree.begin_load(3, [node])
    tree.insert(tokens(1, 2), [20, 21])
    upper, lower = tree.end_load(3)
    assert tree.set_device(upper, [10, 11]).tolist() == [10, 11]
    assert tree.set_device(lower, [12, 13]).tolist() == []
    assert tree.match_prefix(tokens(1, 2, 3, 4)).device_indices.tolist() == [20, 21, 12, 13]
    tree.check_integrity()


def test_a_chain_is_one_copy(tree: RadixTree, node: Node) -> None:
    child = tree.insert(tokens(1, 2, 3, 4, 5), [0, 1, 2, 3, 4]).last_node
    tree.begin_write(1, [node, child])
    tree.match_prefix(tokens(1))
    assert [n.pages for n in tree.writing(1)] == [1, 3, 1]
    assert child.lock_ref == node.lock_ref == 1
    tree.end_write(1)
    tree.check_integrity()


def test_what_cannot_be_copied_is_refused(tree: RadixTree, node: Node) -> None:
    fork = tree.insert(tokens(9), [9]).last_node
    with pytest.raises(MisuseError, match="one path"):
        tree.begin_write(1, [fork, node])
    with pytest.raises(MisuseError, match="at least one"):
        tree.begin_write(1, [])
    with pytest.raises(MisuseError, match="cannot be loaded"):
        tree.begin_load(1, [node])
    tree.begin_write(1, [node])
    with pytest.raises(MisuseError, match="write 1 in flight"):
        tree.begin_write(2, [node])
    with pytest.raises(MisuseError, match="id 1 is in flight already"):
        tree.begin_write(1, [fork])
    tree.end_write(1)
    for call in (tree.end_write, tree.end_load, tree.writing, tree.loading):
        with pytest.raises(MisuseError, match=r"no (write|load) with id 1"):
            call(1)
    tree.check_integrity()


def test_a_locked_root_of_an_empty_namespace_stays_the_one_root(tree: RadixTree) -> None:
    root = tree.match_prefix(tokens(1), extra_key="a").last_host_node
    receipt = tree.inc_host_lock(root)
    tree.insert(tokens(1), [0], extra_key="a")
    assert tree.match_prefix(tokens(1), extra_key="a").best_match_node.parent is root
    tree.dec_host_lock(receipt)
    stale = RadixTree(PAGE).match_prefix(tokens(1), extra_key="a").best_match_node
    tree.inc_lock(stale)  # a root names its namespace, so an old one stands for the one in use
    assert root.lock_ref == 1
    tree.dec_lock(stale)
    tree.check_integrity()


def test_an_idle_root_goes(tree: RadixTree) -> None:
    for salt in range(50):
        node = tree.insert(tokens(1), [salt], cache_salt=str(salt)).last_node
        tree.inc_lock(node)
        tree.dec_lock(node)
        tree.drop(node)
    assert not tree._roots


def test_reset_refuses_while_something_is_held(tree: RadixTree, node: Node) -> None:
    tree.set_host(node, [5, 6, 7, 8])
    receipt = tree.inc_host_lock(node)
    with pytest.raises(MisuseError, match="1 host locks"):
        tree.reset()
    freed = tree.reset(force=True)
    assert (freed.device.tolist(), freed.host.tolist()) == ([0, 1, 2, 3], [5, 6, 7, 8])
    assert tree.node_count == tree.device_pages == tree.host_pages == 0
    with pytest.raises(MisuseError, match="given back before"):
        tree.dec_host_lock(receipt)
    with pytest.raises(MisuseError, match="removed"):
        tree.inc_lock(node)
    tree.check_integrity()
    tree.insert(tokens(1), [0])
    tree.check_integrity()
