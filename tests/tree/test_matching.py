"""match_prefix and lookup."""

from __future__ import annotations

from array import array

import numpy as np
import pytest

from hicache_core.errors import ConfigError
from hicache_core.tree import RadixTree

PAGE = 4


def tokens(*pages: int) -> list[int]:
    """One page of four equal ids for each number."""
    return [page for page in pages for _ in range(PAGE)]


def tree_with(*sequences: tuple[int, ...]) -> RadixTree:
    """A tree of these sequences; slots count up."""
    tree, slot = RadixTree(PAGE), 0
    for pages in sequences:
        tree.insert(tokens(*pages), np.arange(slot, slot + len(pages)))
        slot += len(pages)
    return tree


def test_empty_tree_matches_nothing() -> None:
    match = RadixTree(PAGE).match_prefix(tokens(1, 2))
    assert match.device_indices.tolist() == []
    assert match.host_hit_pages == 0
    assert match.last_device_node is match.last_host_node is match.best_match_node
    assert match.best_match_node.is_root


def test_whole_sequence_on_the_device() -> None:
    tree = tree_with((1, 2, 3))
    match = tree.match_prefix(tokens(1, 2, 3))
    assert match.device_indices.tolist() == [0, 1, 2]
    assert match.device_pages == match.matched_pages == 3
    assert match.device_hit_length == 12
    assert match.last_device_node is match.best_match_node
    assert match.last_host_node.is_root


def test_a_match_inside_a_node_splits_it() -> None:
    tree = tree_with((1, 2, 3))
    match = tree.match_prefix(tokens(1, 2, 9))
    assert match.device_indices.tolist() == [0, 1]
    assert match.best_match_node.pages == 2
    assert tree.node_count == 2
    tree.check_integrity()


def test_a_partial_page_never_matches() -> None:
    tree = tree_with((1, 2))
    assert tree.match_prefix([*tokens(1), 2, 2, 2]).device_pages == 1
    assert tree.match_prefix([1, 1, 1, 7, *tokens(2)]).device_pages == 0


def test_device_pages_then_host_pages() -> None:
    tree = tree_with((1, 2, 3))
    tail = tree.match_prefix(tokens(1)).best_match_node.children[np.array(tokens(2), "<u4").tobytes()]
    tree.set_host(tail, [70, 71])
    assert tree.demote(tail).tolist() == [1, 2]
    match = tree.match_prefix(tokens(1, 2, 3))
    assert match.device_indices.tolist() == [0]
    assert (match.host_hit_pages, match.host_hit_length) == (2, 8)
    assert match.last_device_node.pages == 1
    assert match.last_host_node is match.best_match_node is tail


def test_last_host_node_may_lie_above_the_match() -> None:
    tree = tree_with((1, 2))
    top = tree.match_prefix(tokens(1)).best_match_node
    tree.set_host(top, [9])
    match = tree.match_prefix(tokens(1, 2))
    assert match.last_host_node is top
    assert match.best_match_node is not top


def test_namespaces_share_nothing() -> None:
    tree = RadixTree(PAGE)
    for slot, name in enumerate([{}, {"extra_key": "a"}, {"cache_salt": "a"}, {"extra_key": "a", "cache_salt": "a"}]):
        assert tree.match_prefix(tokens(1), **name).device_pages == 0
        tree.insert(tokens(1), [slot], **name)
        assert tree.match_prefix(tokens(1), **name).device_indices.tolist() == [slot]
    assert tree.match_prefix(tokens(1), cache_salt="").device_indices.tolist() == [0]
    tree.check_integrity()


def test_a_key_carries_its_namespace() -> None:
    tree = RadixTree(PAGE)
    key = tree.key(tokens(1, 2), extra_key="lora")
    tree.insert(key, [3, 4])
    assert tree.match_prefix(key).device_pages == 2
    assert tree.match_prefix(tokens(1, 2)).device_pages == 0
    assert tree.key_of(tree.match_prefix(key).best_match_node) == key


@pytest.mark.parametrize(
    "form",
    [list, tuple, lambda t: array("q", t), lambda t: array("I", t), np.array, lambda t: np.array(t, np.uint32)],
)
def test_every_form_of_tokens_is_the_same_key(form) -> None:
    tree = RadixTree(PAGE)
    assert tree.key(form([*tokens(1, 2), 5])) == tree.key(tokens(1, 2))
    assert tree.key(form([])).data == b""


@pytest.mark.parametrize("form", [list, lambda t: array("q", t), np.array])
@pytest.mark.parametrize(("bad", "word"), [(-1, "negative"), (2**32, "wide id"), (2**62, "wide id")])
def test_an_id_that_does_not_fit_is_refused(form, bad: int, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        RadixTree(PAGE).key(form([0, 1, bad, 3]))


def test_the_largest_id_fits() -> None:
    assert RadixTree(1).key(array("q", [2**32 - 1])).data == b"\xff" * 4


def test_lookup_changes_nothing() -> None:
    tree = tree_with((1, 2, 3))
    before = [(node.id, node.last_access) for node in tree.walk()]
    assert [(node.pages, pages) for node, pages in tree.lookup(tokens(1, 2, 9))] == [(3, 2)]
    assert tree.lookup(tokens(8)) == []
    assert tree.lookup(tokens(1), cache_salt="other") == []
    assert [(node.id, node.last_access) for node in tree.walk()] == before


def test_match_without_touch_is_not_a_use() -> None:
    tree = tree_with((1,))
    node = tree.match_prefix(tokens(1)).best_match_node
    before = node.last_access
    tree.match_prefix(tokens(1), touch=False)
    assert node.last_access == before
    tree.match_prefix(tokens(1))
    assert node.last_access > before


def test_a_match_touches_host_pages_too() -> None:
    tree = tree_with((1,))
    node = tree.insert_host(tokens(1, 2), [7], start_page=1).last_node
    before = node.last_access
    tree.match_prefix(tokens(1, 2))
    assert node.last_access > before


def test_the_answer_is_a_snapshot_that_cannot_be_written() -> None:
    tree = tree_with((1, 2, 3))
    match = tree.match_prefix(tokens(1, 2, 3))
    tree.match_prefix(tokens(1))
    assert match.device_indices.tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="read-only"):
        match.device_indices[0] = 9


def test_an_unknown_namespace_leaves_no_root_behind() -> None:
    tree = RadixTree(PAGE)
    for salt in range(100):
        tree.match_prefix(tokens(1), cache_salt=str(salt))
    assert not tree._roots


@pytest.mark.parametrize("size", [0, -4, 3, 48])
def test_page_size_must_be_a_power_of_two(size: int) -> None:
    with pytest.raises(ConfigError, match=f"power of two, not {size}"):
        RadixTree(size)
