"""The order in which pages go: the longest unused first, taken from one scan and good for many evictions.

Each victim is looked at again before it goes, so the order stays right without another scan until the list is used
up: what was used since is skipped, what was written since is younger than all that is listed.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from hicache_file.walk import Stored

KEPT = 65_536
"""Victims remembered from one scan."""


class Victims:
    """The longest unused pages of a scan, oldest first, and the totals of that scan."""

    def __init__(self) -> None:
        self._oldest: list[Stored] = []
        self.truncated = False
        """Whether the store held more pages than are listed."""
        self.total_bytes = self.total_files = 0
        self.removed_at_scan = 0
        """What the account's count of removals was."""
        self.removed = self.missed = 0
        """Pages that we removed since, and pages that were gone when their turn came."""

    @classmethod
    def of(cls, found: Iterable[Stored], *, removed_at_scan: int) -> Victims:
        """Scan."""
        victims = cls()
        victims.removed_at_scan = removed_at_scan
        oldest = heapq.nsmallest(KEPT, victims._counted(found), key=lambda page: page.mtime_ns)
        oldest.reverse()
        victims._oldest = oldest
        victims.truncated = victims.total_files > len(oldest)
        return victims

    def _counted(self, found: Iterable[Stored]) -> Iterable[Stored]:
        for page in found:
            self.total_bytes += page.allocated
            self.total_files += 1
            yield page

    def pop(self) -> Stored | None:
        """The next to go, or None."""
        return self._oldest.pop() if self._oldest else None

    def are_stale(self, removed_by_others: int) -> bool:
        """Whether more victims were gone than other processes say they removed: someone tidied up by hand."""
        return self.missed > max(0, removed_by_others)

    def __len__(self) -> int:
        return len(self._oldest)
