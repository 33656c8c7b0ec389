"""Policies, victims, demote and drop."""

from __future__ import annotations

import random
from importlib.metadata import EntryPoint
from typing import Any

import numpy as np
import pytest

from hicache_core.errors import DuplicateNameError, MisuseError, PluginError, UnknownNameError
from hicache_core.plugin import extensions
from hicache_core.tree import Node, RadixTree, eviction, find_policy, policy_names

PAGE = 4
NAMES = ["fifo", "filo", "lfu", "lru", "mru", "priority", "slru"]


def tokens(*pages: int) -> list[int]:
    """One page of four equal ids for each number."""
    return [page for page in pages for _ in range(PAGE)]


def drain(tree: RadixTree) -> list[int]:
    """Drop everything; first tokens in the order of eviction."""
    order = []
    for node in tree.device_victims():
        order.append(int(tree.tokens(node)[0]))
        tree.drop(node)
        tree.check_integrity()
    return order


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        ("lru", [2, 4, 1, 3]),
        ("mru", [3, 1, 4, 2]),
        ("fifo", [1, 2, 3, 4]),
        ("filo", [4, 3, 2, 1]),
        ("lfu", [2, 4, 3, 1]),
        ("slru", [2, 4, 1, 3]),
        ("priority", [2, 1, 3, 4]),
    ],
)
def test_order(policy: str, order: list[int]) -> None:
    tree = RadixTree(PAGE, eviction=policy)
    for page in (1, 2, 3, 4):
        tree.insert(tokens(page), [page], priority=5 if page == 4 else 0)
    tree.insert(tokens(1), [1])
    tree.insert(tokens(1), [1])
    tree.insert(tokens(3), [3])
    assert drain(tree) == order
    assert tree.node_count == 0


def test_a_match_is_a_use() -> None:
    lru, mru = RadixTree(PAGE, eviction="lru"), RadixTree(PAGE, eviction="mru")
    for tree in (lru, mru):
        for page in (1, 2, 3):
            tree.insert(tokens(page), [page])
        tree.match_prefix(tokens(2))
    assert drain(lru) == [1, 3, 2]
    assert drain(mru) == [2, 3, 1]


def test_a_match_is_a_use_of_host_leaves_too() -> None:
    for policy, order in (("lru", [1, 3, 2]), ("mru", [2, 3, 1])):
        tree = RadixTree(PAGE, eviction=policy)
        for page in (1, 2, 3):
            tree.insert_host(tokens(page), [page])
        tree.match_prefix(tokens(2))
        victims = []
        for node in tree.host_victims():
            victims += tree.drop_host(node).tolist()
        assert victims == order


def test_parents_follow_their_children() -> None:
    tree = RadixTree(PAGE)
    tree.insert(tokens(1, 2), [0, 1])
    tree.insert(tokens(1, 3), [0, 2])
    assert drain(tree) == [2, 3, 1]


def test_demote_then_drop_from_the_host() -> None:
    tree = RadixTree(PAGE)
    node = tree.insert(tokens(1, 2), [0, 1]).last_node
    with pytest.raises(MisuseError, match="not a backed-up device leaf"):
        tree.demote(node)
    tree.set_host(node, [8, 9])
    with pytest.raises(MisuseError, match="cannot be dropped"):
        tree.drop(node)
    with pytest.raises(MisuseError, match="not a host leaf"):
        tree.drop_host(node)
    assert tree.demote(node).tolist() == [0, 1]
    assert (tree.device_pages, tree.host_pages) == (0, 2)
    assert tree.match_prefix(tokens(1, 2)).host_hit_pages == 2
    assert [tree.drop_host(victim).tolist() for victim in tree.host_victims()] == [[8, 9]]
    assert tree.node_count == tree.host_pages == 0
    with pytest.raises(MisuseError, match="removed"):
        tree.drop_host(node)


def test_an_unbacked_node_goes_with_the_host_pages_below_it() -> None:
    tree = RadixTree(PAGE)
    node = tree.insert(tokens(1), [0]).last_node
    tree.insert_host(tokens(1, 2, 3), [5, 6], start_page=1)
    below = tree.insert_host(tokens(1, 2, 4), [5, 7], start_page=1).last_node
    receipt = tree.inc_host_lock(below)
    assert not tree.droppable(node)
    with pytest.raises(MisuseError, match="cannot be dropped"):
        tree.drop(node)
    tree.dec_host_lock(receipt)
    freed = tree.drop(node)
    assert freed.device.tolist() == [0]
    assert sorted(freed.host.tolist()) == [5, 6, 7]
    assert below.removed
    assert tree.host_pages == 0
    tree.check_integrity()


def test_a_device_leaf_may_have_children_in_host_memory() -> None:
    tree = RadixTree(PAGE)
    tree.insert(tokens(1), [0])
    child = tree.insert(tokens(1, 2), [0, 1]).last_node
    tree.set_host(child, [5])
    tree.demote(child)
    assert [node.pages for node in tree.device_victims()] == [1]
    tree.set_host(child.parent, [4])
    tree.demote(child.parent)
    assert list(tree.host_victims()) == [child]
    tree.drop_host(child)
    assert [int(tree.tokens(node)[0]) for node in tree.host_victims()] == [1]
    tree.check_integrity()


def test_release_host_keeps_the_device_copy() -> None:
    tree = RadixTree(PAGE)
    node = tree.insert(tokens(1), [0]).last_node
    with pytest.raises(MisuseError, match="cannot be given up"):
        tree.release_host(node)
    tree.set_host(node, [5])
    assert tree.release_host(node).tolist() == [5]
    assert (node.backed_up, node.evicted) == (False, False)
    assert tree.host_pages == 0


def test_a_spared_victim_comes_back() -> None:
    tree = RadixTree(PAGE)
    for page in (1, 2, 3):
        tree.insert(tokens(page), [page])
    for node in tree.device_victims():
        tree.check_integrity()
        if tree.tokens(node)[0] == 2:
            tree.inc_lock(node)  # sparing must not become yielding it for ever
            tree.dec_lock(node)
    tree.check_integrity()
    assert drain(tree) == [1, 2, 3]


def test_stopping_early_loses_nothing() -> None:
    tree = RadixTree(PAGE)
    for page in (1, 2, 3):
        tree.insert(tokens(page), [page])
    for node in tree.device_victims():
        assert tree.tokens(node)[0] == 1
        break
    tree.check_integrity()
    assert drain(tree) == [1, 2, 3]


@pytest.mark.parametrize("policy", NAMES)
def test_the_queue_stays_small_and_forgets_removed_nodes(policy: str) -> None:
    tree, rng = RadixTree(PAGE, eviction=policy), random.Random(1)
    for step in range(3000):
        node = tree.insert(tokens(rng.randrange(40), step), [0, 0]).last_node
        tree.inc_lock(node)
        tree.match_prefix(tokens(rng.randrange(40)))
        tree.dec_lock(node)
        while tree.node_count > 100:
            tree.drop(next(iter(tree.device_victims())))
    for queue in (tree._device_queue, tree._host_queue):
        assert len(queue._heap) <= 2 * tree.node_count + 64
        assert sum(node.removed for _, _, node in queue._heap) <= tree.node_count + 64


def test_an_eviction_looks_at_few_leaves() -> None:
    looked = 0

    class Counting(eviction.Lru):
        def priority(self, node: Node) -> float:
            nonlocal looked
            looked += 1
            return super().priority(node)

    tree = RadixTree(PAGE, eviction=Counting())
    for page in range(2000):
        tree.insert(tokens(page), [page])
    looked = 0
    for node in tree.device_victims():
        tree.drop(node)
        if tree.node_count == 1900:
            break
    assert looked < 1000


def test_installed_policies() -> None:
    assert set(policy_names()) >= set(NAMES)
    assert all(callable(find_policy(name).priority) for name in policy_names())


def test_an_unknown_policy_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="unknown eviction policy 'lruu'; did you mean 'lru'"):
        RadixTree(PAGE, eviction="lruu")


class Largest:
    """A policy of someone else's, without `falls`."""

    def priority(self, node: Node) -> Any:
        return -node.pages


def test_a_policy_object_is_taken_as_it_is() -> None:
    tree = RadixTree(PAGE, eviction=Largest())  # type: ignore[arg-type]
    slot = 0
    for page, length in ((1, 1), (2, 3), (3, 2)):
        tree.insert(tokens(*[page] * length), np.arange(slot, slot + length))
        slot += length
    assert drain(tree) == [2, 3, 1]


@pytest.mark.parametrize(
    ("entries", "error", "words"),
    [
        (["nowhere:Policy"], PluginError, "could not be loaded"),
        (["random:Random"], PluginError, "no method priority"),
        (["a:A", "b:B"], DuplicateNameError, "claimed by a:A .* and b:B"),
    ],
)
def test_a_broken_policy_is_named(
    monkeypatch: pytest.MonkeyPatch, entries: list[str], error: type[Exception], words: str
) -> None:
    found = [EntryPoint("mine", value, eviction.GROUP) for value in entries]
    monkeypatch.setattr(extensions, "registered", lambda group: {"mine": found})
    with pytest.raises(error, match=words):
        find_policy("mine")
