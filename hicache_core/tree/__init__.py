"""The tree of prefixes: what is in L1 and L2, and where."""

from __future__ import annotations

from hicache_core.tree.eviction import EvictionPolicy, find_policy, policy_names
from hicache_core.tree.key import TreeKey
from hicache_core.tree.locking import HostLock
from hicache_core.tree.node import Node, StorageState
from hicache_core.tree.radix import RadixTree
from hicache_core.tree.results import Freed, HostInsertResult, InsertResult, MatchResult

__all__ = [
    "EvictionPolicy",
    "Freed",
    "HostInsertResult",
    "HostLock",
    "InsertResult",
    "MatchResult",
    "Node",
    "RadixTree",
    "StorageState",
    "TreeKey",
    "find_policy",
    "policy_names",
]
