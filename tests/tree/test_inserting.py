"""insert, insert_host, set_host, set_device."""

from __future__ import annotations

import numpy as np
import pytest

from hicache_core.errors import MisuseError
from hicache_core.keys import chain_seed, page_hashes
from hicache_core.tree import Node, RadixTree, StorageState

PAGE = 4


def tokens(*pages: int) -> list[int]:
    """One page of four equal ids for each number."""
    return [page for page in pages for _ in range(PAGE)]


def node_at(tree: RadixTree, *pages: int) -> Node:
    """The node that ends there."""
    return tree.match_prefix(tokens(*pages), touch=False).best_match_node


@pytest.fixture
def tree() -> RadixTree:
    return RadixTree(PAGE)


def test_duplicates_are_reported(tree: RadixTree) -> None:
    tree.insert(tokens(1, 2), [10, 11])
    result = tree.insert(tokens(1, 2, 3), [20, 21, 22])
    assert result.prefix_pages == 2
    assert result.device_indices.tolist() == [10, 11, 22]
    assert result.duplicates.tolist() == [20, 21]
    assert [node.pages for node in result.new_nodes] == [1]
    assert result.filled_nodes == []
    assert result.last_node is result.new_nodes[0]


def test_the_trees_own_slots_are_not_duplicates(tree: RadixTree) -> None:
    tree.insert(tokens(1, 2), [10, 11])
    result = tree.insert(tokens(1, 2, 3), [10, 21, 22])
    assert result.prefix_pages == 2
    assert result.duplicates.tolist() == [21]


def test_a_host_only_node_gets_its_device_value_back(tree: RadixTree) -> None:
    tree.insert(tokens(1, 2, 3), [0, 1, 2])
    node = node_at(tree, 1, 2, 3)
    tree.set_host(node, [50, 51, 52])
    tree.demote(node)
    result = tree.insert(tokens(1, 2, 9), [7, 8, 9])
    assert result.prefix_pages == 0
    assert result.device_indices.tolist() == [7, 8, 9]
    (upper,) = result.filled_nodes
    assert upper.device is not None
    assert upper.host is not None
    assert (upper.device.tolist(), upper.host.tolist()) == ([7, 8], [50, 51])
    assert tree.match_prefix(tokens(1, 2, 3)).host_hit_pages == 1
    assert (tree.device_pages, tree.host_pages) == (3, 3)
    tree.check_integrity()


def test_the_tree_keeps_no_array_of_the_caller(tree: RadixTree) -> None:
    slots = np.arange(3)
    tree.insert(tokens(1, 2, 3), slots)
    slots[:] = 99
    assert tree.match_prefix(tokens(1, 2, 3)).device_indices.tolist() == [0, 1, 2]


def test_hits_and_priority_count_along_the_path(tree: RadixTree) -> None:
    tree.insert(tokens(1, 2), [0, 1], priority=3)
    tree.insert(tokens(1, 5), [0, 2], priority=1)
    tree.insert(tokens(1), [0], priority=7, count_hit=False)
    top, old, new = node_at(tree, 1), node_at(tree, 1, 2), node_at(tree, 1, 5)
    assert [node.hit_count for node in (top, old, new)] == [2, 1, 1]
    assert [node.priority for node in (top, old, new)] == [7, 3, 1]


def test_an_empty_sequence_is_nothing(tree: RadixTree) -> None:
    result = tree.insert([], [])
    assert result.last_node.is_root
    assert result.device_indices.tolist() == []
    assert tree.node_count == 0
    tree.check_integrity()


def test_slots_and_pages_must_agree(tree: RadixTree) -> None:
    with pytest.raises(MisuseError, match=r"2 pages need as many slots, got an array of shape \(3,\)"):
        tree.insert(tokens(1, 2), [0, 1, 2])
    with pytest.raises(MisuseError, match="1 pages"):
        tree.insert_host(tokens(1, 2), [0, 1], start_page=1)
    with pytest.raises(MisuseError, match="1 hashes for 2 pages"):
        tree.insert_host(tokens(1, 2), [0, 1], ["00" * 32])
    with pytest.raises(MisuseError, match="start_page 3 is not in 0 … 2"):
        tree.insert_host(tokens(1, 2), [0], start_page=3)
    tree.check_integrity()


def test_insert_host_continues_a_device_prefix(tree: RadixTree) -> None:
    tree.insert(tokens(1), [0])
    hashes = page_hashes(tokens(1, 2, 3), PAGE)[1:]
    result = tree.insert_host(tokens(1, 2, 3), [40, 41], hashes, start_page=1)
    assert result.anchored
    assert result.inserted_pages == 2
    assert result.duplicates.tolist() == []
    assert result.last_node.hashes == hashes
    assert result.last_node.storage_state is StorageState.STORED
    assert result.last_node.hit_count == 0
    match = tree.match_prefix(tokens(1, 2, 3))
    assert (match.device_pages, match.host_hit_pages) == (1, 2)
    tree.check_integrity()


def test_insert_host_gives_back_what_was_there(tree: RadixTree) -> None:
    tree.insert_host(tokens(1, 2), [40, 41])
    result = tree.insert_host(tokens(1, 2, 3), [50, 51, 52])
    assert result.duplicates.tolist() == [50, 51]
    assert [node.pages for node in result.nodes] == [1]
    assert tree.host_pages == 3


def test_insert_host_backs_up_a_node_on_the_device(tree: RadixTree) -> None:
    tree.insert(tokens(1, 2), [0, 1])
    result = tree.insert_host(tokens(1, 2), [50, 51])
    assert result.inserted_pages == 2
    assert tree.demote(node_at(tree, 1, 2)).tolist() == [0, 1]


def test_insert_host_leaves_a_queued_write_alone(tree: RadixTree) -> None:
    node = tree.insert(tokens(1), [0]).last_node
    node.storage_state = StorageState.QUEUED
    tree.insert_host(tokens(1), [5])
    assert node.storage_state is StorageState.QUEUED


def test_insert_host_without_its_anchor_inserts_nothing(tree: RadixTree) -> None:
    tree.insert(tokens(1), [0])
    result = tree.insert_host(tokens(1, 2, 3), [40], start_page=2)
    assert not result.anchored
    assert result.duplicates.tolist() == [40]
    assert tree.host_pages == 0
    assert not tree.insert_host(tokens(8, 9), [40], start_page=1, cache_salt="x").anchored
    tree.check_integrity()


def test_insert_host_may_start_inside_a_node(tree: RadixTree) -> None:
    tree.insert(tokens(1, 2, 3), [0, 1, 2])
    result = tree.insert_host(tokens(1, 2), [40], start_page=1)
    assert result.inserted_pages == 1
    assert [node.host is not None for node in tree.path(node_at(tree, 1, 2, 3))] == [False, True, False]
    tree.check_integrity()


def test_set_host_and_set_device_return_what_is_not_needed(tree: RadixTree) -> None:
    node = tree.insert(tokens(1, 2), [0, 1]).last_node
    assert tree.set_host(node, [8, 9]).tolist() == []
    assert tree.set_host(node, [6, 7]).tolist() == [6, 7]
    assert tree.set_device(node, [4, 5]).tolist() == [4, 5]
    tree.demote(node)
    assert tree.set_device(node, [4, 5]).tolist() == []
    assert tree.match_prefix(tokens(1, 2)).device_indices.tolist() == [4, 5]
    tree.check_integrity()


def test_set_device_needs_the_parent_on_the_device(tree: RadixTree) -> None:
    tree.insert_host(tokens(1), [1])
    child = tree.insert_host(tokens(1, 2), [0, 2]).last_node
    with pytest.raises(MisuseError, match="its parent"):
        tree.set_device(child, [9])


def test_hashes_are_chained_from_the_seed_and_split_with_the_node(tree: RadixTree) -> None:
    for namespace in ({}, {"extra_key": "lora"}, {"cache_salt": "tenant"}):
        tree.insert(tokens(1, 2, 3, 4), np.arange(4) + 10 * len(tree._roots), **namespace)
        seed = chain_seed(namespace.get("extra_key"), namespace.get("cache_salt"))
        expected = page_hashes(tokens(1, 2, 3, 4), PAGE, prior=seed)
        lower = tree.match_prefix(tokens(1, 2, 3, 4), **namespace).best_match_node
        assert tree.hashes(lower) == expected
        upper = tree.match_prefix(tokens(1, 2), **namespace).best_match_node
        assert (upper.hashes, lower.hashes) == (expected[:2], expected[2:])
        tree.insert(tokens(1, 2, 7), [*upper.device.tolist(), 90 + len(tree._roots)], **namespace)
        fork = tree.match_prefix(tokens(1, 2, 7), **namespace).best_match_node
        assert fork.hashes is None
        assert tree.path_hashes(fork) == page_hashes(tokens(1, 2, 7), PAGE, prior=seed)
    tree.check_integrity()


def test_hashes_of_every_node_can_be_filled_in_later(tree: RadixTree) -> None:
    slot = 0
    for last in range(20):
        tree.insert(tokens(1, 2, last % 7, last), np.arange(slot, slot + 4))
        slot += 4
    for node in tree.walk():
        assert len(tree.hashes(node)) == node.pages
    tree.check_integrity()


def test_a_deep_path_does_not_recurse(tree: RadixTree) -> None:
    pages = list(range(3000))
    for end in range(1, len(pages), 1):
        tree.insert_host(tokens(*pages[end - 1 : end]), [10_000 + end], extra_key="flat")
    node = tree.insert(tokens(*pages), np.arange(3000)).last_node
    ids = tokens(*pages)
    for end in range(2999, 0, -1):
        tree.match_prefix(ids[: end * PAGE])
    assert len(tree.path(node)) == 3000
    assert tree.path_hashes(node) == page_hashes(ids, PAGE)


def test_tokens_and_paths(tree: RadixTree) -> None:
    tree.insert(tokens(1, 2), [0, 1])
    upper = node_at(tree, 1)
    lower = node_at(tree, 1, 2)
    assert tree.tokens(lower).tolist() == [2, 2, 2, 2]
    assert tree.path(lower) == [upper, lower]
    assert tree.unbacked_path(lower) == [upper, lower]
    tree.set_host(upper, [8])
    assert tree.unbacked_path(lower) == [lower]
    tree.begin_write(1, [lower])
    assert tree.unbacked_path(lower) == []
    tree.set_host(lower, [9])
    tree.end_write(1)
    tree.demote(lower)
    assert tree.loadable_path(lower) == [lower]
