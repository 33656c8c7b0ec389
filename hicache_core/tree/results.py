"""What the tree answers. All counts are in pages unless a name says tokens."""

from __future__ import annotations

import msgspec

from hicache_core.tree.node import Node
from hicache_core.types import Slots


class MatchResult(msgspec.Struct, frozen=True):
    """The longest prefix that the tree has: first pages on the device, then pages in host memory only.

    The nodes are valid until something is evicted: whoever keeps one takes a lock on it first.
    """

    device_indices: Slots
    """L1 page slots from the start of the sequence, int64[n], read-only."""
    host_hit_pages: int
    """Pages after those that are in host memory only."""
    last_device_node: Node
    """End of the part on the device; a root when there is none."""
    last_host_node: Node
    """Deepest node of the match that has a host copy; a root when none has. Where a prefetch may continue."""
    best_match_node: Node
    """End of the whole match."""
    page_size: int

    @property
    def device_pages(self) -> int:
        """Pages on the device."""
        return len(self.device_indices)

    @property
    def matched_pages(self) -> int:
        """Pages on the device or in host memory."""
        return len(self.device_indices) + self.host_hit_pages

    @property
    def host_hit_length(self) -> int:
        """Tokens that are in host memory only."""
        return self.host_hit_pages * self.page_size

    @property
    def device_hit_length(self) -> int:
        """Tokens on the device."""
        return len(self.device_indices) * self.page_size


class InsertResult(msgspec.Struct, frozen=True):
    """What became of the device slots that were offered."""

    prefix_pages: int
    """Leading pages that were on the device already; for these the caller keeps (and frees) its own slots."""
    device_indices: Slots
    """The slots the tree now has for the whole key, int64[n], read-only."""
    duplicates: Slots
    """Those of the offered slots that the tree did not take and does not own: the caller frees them."""
    last_node: Node
    """End of the key; a root for an empty key."""
    new_nodes: list[Node]
    """Nodes made for pages nobody had, top down (at most one)."""
    filled_nodes: list[Node]
    """Host-only nodes that got a device value, top down."""


class HostInsertResult(msgspec.Struct, frozen=True):
    """What became of the host slots that were offered."""

    inserted_pages: int
    """Pages that took a host slot."""
    duplicates: Slots
    """Offered slots that the tree did not take: the caller frees them."""
    last_node: Node
    """End of the key; where the anchor is lost, end of what there is."""
    nodes: list[Node]
    """Nodes that took host slots, top down."""
    anchored: bool
    """False: pages before `start_page` have gone from the tree meanwhile, so nothing was inserted."""


class Freed(msgspec.Struct, frozen=True):
    """Slots that the tree gave up; the caller returns them to their pools."""

    device: Slots
    host: Slots
