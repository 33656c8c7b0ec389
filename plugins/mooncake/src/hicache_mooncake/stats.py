"""Counters of one open store."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import msgspec

from hicache_core.types import Outcome


class MooncakeStats(msgspec.Struct, frozen=True):
    """Since the store was opened. bytes_*: moved, seals included. master_*: what its metrics say, or None."""

    pages_read: int
    pages_written: int
    bytes_read: int
    bytes_written: int
    registered_bytes: int
    master_trouble: str
    master_silences: int
    master_keys: int | None
    capacity_bytes: int | None
    allocated_bytes: int | None


class Counters:
    """Pages and bytes, added up under a lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.pages_read = self.pages_written = self.bytes_read = self.bytes_written = 0

    def read(self, outcomes: Sequence[Outcome], totals: Sequence[int]) -> None:
        """Of the pages that were a hit."""
        pages, nbytes = _of(outcomes, totals, Outcome.HIT)
        with self._lock:
            self.pages_read += pages
            self.bytes_read += nbytes

    def written(self, outcomes: Sequence[Outcome], totals: Sequence[int]) -> None:
        """Of the pages that were stored."""
        pages, nbytes = _of(outcomes, totals, Outcome.STORED)
        with self._lock:
            self.pages_written += pages
            self.bytes_written += nbytes


def _of(outcomes: Sequence[Outcome], totals: Sequence[int], wanted: Outcome) -> tuple[int, int]:
    count = sum(outcome is wanted for outcome in outcomes)
    if count == len(outcomes):
        return count, sum(totals)
    return count, sum(total for outcome, total in zip(outcomes, totals, strict=True) if outcome is wanted)
