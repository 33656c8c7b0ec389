"""Eviction policies: which leaf goes first.

A policy is a class without arguments to its constructor, registered under the entry point group
`hicache.eviction_policies`. The tree evicts the leaf with the smallest `priority(node)`.
"""

from __future__ import annotations

from typing import Any, Protocol

from hicache_core.errors import PluginError
from hicache_core.plugin.extensions import make, registered
from hicache_core.tree.node import Node

GROUP = "hicache.eviction_policies"


class EvictionPolicy(Protocol):
    """An order on leaves.

    `priority` is called on the thread that owns the tree, must be quick, and may depend on the node's own fields
    only (last_access, hit_count, created, priority, pages), not on anything that changes by itself.
    """

    falls: bool
    """True where a use of a node (a match, an insert) can lower its priority. Where uses only raise it, the tree
    need not touch its queue on a match. A policy without this attribute is taken to fall."""

    def priority(self, node: Node) -> Any:
        """Smallest goes first. All values must compare with each other."""
        ...


class Lru:
    """Least recently used first."""

    falls = False

    def priority(self, node: Node) -> float:
        """Time of the last use."""
        return node.last_access


class Lfu:
    """Least often inserted first; ties by last use."""

    falls = False

    def priority(self, node: Node) -> tuple[int, float]:
        """(hits, last use)."""
        return node.hit_count, node.last_access


class Fifo:
    """Oldest first."""

    falls = False

    def priority(self, node: Node) -> float:
        """Time of creation."""
        return node.created


class Mru:
    """Most recently used first."""

    falls = True

    def priority(self, node: Node) -> float:
        """Time of the last use, reversed."""
        return -node.last_access


class Filo:
    """Newest first."""

    falls = False

    def priority(self, node: Node) -> float:
        """Time of creation, reversed."""
        return -node.created


class Slru:
    """Segmented LRU: nodes inserted at least twice are protected from those that were not."""

    falls = False
    protected_threshold = 2

    def priority(self, node: Node) -> tuple[bool, float]:
        """(protected, last use)."""
        return node.hit_count >= self.protected_threshold, node.last_access


class Priority:
    """Lowest request priority first; ties by last use."""

    falls = False

    def priority(self, node: Node) -> tuple[int, float]:
        """(priority, last use)."""
        return node.priority, node.last_access


def policy_names() -> list[str]:
    """Every policy that is installed."""
    return sorted(registered(GROUP))


def find_policy(name: str) -> EvictionPolicy:
    """The policy of that name.

    Raises UnknownNameError (names the nearest), DuplicateNameError where two distributions claim the name,
    PluginError where the policy cannot be imported or is not one.
    """
    policy = make(GROUP, "eviction policy", name)
    if not callable(getattr(policy, "priority", None)):
        raise PluginError(f"eviction policy {name!r} has no method priority(node)")
    found: EvictionPolicy = policy
    return found
