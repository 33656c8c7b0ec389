"""A node of the radix tree: a run of pages that every sequence below it shares."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from hicache_core.tree.components import SlotRecord

if TYPE_CHECKING:
    from hicache_core.tree.locking import HostLock

NamespaceKey = tuple[str | None, str | None]
"""(extra_key, cache_salt): what a root stands for. Sequences under different roots share nothing."""


class StorageState(Enum):
    """What is known of the node's pages in L3. Only the controller sets it."""

    NONE = "none"
    QUEUED = "queued"
    STORED = "stored"
    FAILED = "failed"


class Node(SlotRecord):
    """A run of `pages` pages. Read it freely; only the tree's methods may change what is not marked as free.

    A node is on the device (`device`), in host memory (`host`), or both; a node that is in neither does not exist.
    """

    __slots__ = (
        "children",
        "created",
        "device_children",
        "hashes",
        "hit_count",
        "host_locks",
        "id",
        "key",
        "last_access",
        "load_pending",
        "pages",
        "parent",
        "priority",
        "storage_state",
        "write_pending",
    )

    is_root = False

    def __init__(self, node_id: int, key: bytes, pages: int, parent: Node | None, now: float) -> None:
        self.id = node_id
        """Unique in the tree, never used again."""
        self.key = key
        """The tokens of the run, little-endian uint32."""
        self.pages = pages
        self.parent = parent
        """None for a root, and for a node that has been removed."""
        self.children: dict[bytes, Node] = {}
        """By the bytes of the child's first page."""
        self.device_children = 0
        """Children that are on the device."""
        self.device = None
        self.host = None
        self.lock_ref = 0
        self.host_lock_ref = 0
        self.host_locks: list[HostLock] | None = None
        """The receipts behind host_lock_ref."""
        self.hashes: list[str] | None = None
        """Page hashes, once someone asked for them (`RadixTree.hashes`)."""
        self.hit_count = 0
        """Inserts that passed here."""
        self.created = now
        self.last_access = now
        self.priority = 0
        self.write_pending: int | None = None
        """Id of the L1 → L2 copy that reads this node."""
        self.load_pending: int | None = None
        """Id of the L2 → L1 copy that fills this node."""
        self.storage_state = StorageState.NONE
        """Free for the controller to set; both halves inherit it at a split."""

    @property
    def backed_up(self) -> bool:
        """There is a copy in host memory."""
        return self.host is not None

    @property
    def evicted(self) -> bool:
        """Not on the device."""
        return self.device is None

    @property
    def removed(self) -> bool:
        """No longer part of the tree."""
        return self.parent is None and not self.is_root

    @property
    def in_flight(self) -> bool:
        """A copy between the tiers is reading or filling it."""
        return self.write_pending is not None or self.load_pending is not None

    def __repr__(self) -> str:
        tiers = "+".join(word for word, slots in (("device", self.device), ("host", self.host)) if slots is not None)
        return f"<{type(self).__name__} {self.id}: {self.pages} pages, {tiers or 'no tier'}>"


class Root(Node):
    """The empty prefix of one namespace."""

    __slots__ = ("namespace",)

    is_root = True

    def __init__(self, node_id: int, namespace: NamespaceKey, now: float) -> None:
        super().__init__(node_id, b"", 0, None, now)
        self.namespace = namespace
