"""What a store counts."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import msgspec


class Totals(msgspec.Struct, kw_only=True, frozen=True):
    """What the index says of the whole store."""

    pages: int
    bytes_stored: int
    """Sum of the pages' lengths."""
    bytes_held: int
    """Bytes of slots that may hold blocks on disk: what the cap is about."""
    slots: int
    """Slots ever made."""
    slots_free: int
    slots_reserved: int
    """Slots whose pages are being written, or whose writers died and were not yet noticed."""
    size_classes: int
    max_size: int | None


class Hf3fsStats(Totals, kw_only=True, frozen=True):
    """State of the store, and what this open one has done."""

    io: str
    """`posix` or `usrbio`."""
    bytes_read: int
    """Bytes moved out of slots, also those of pages that then turned out wrong."""
    bytes_written: int
    """Bytes moved into slots, also those of pages that another writer published first."""
    raced: int
    """Pages whose slot was given away while they were read: read again, or a miss."""
    rejected: int
    errors: int
    last_error: str


@dataclass(slots=True)
class Counters:
    """Counts of one open store."""

    bytes_read: int = 0
    bytes_written: int = 0
    raced: int = 0
    rejected: int = 0
    errors: int = 0
    last_error: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, *, bytes_read: int = 0, bytes_written: int = 0, raced: int = 0, rejected: int = 0) -> None:
        """Count; any thread may."""
        with self._lock:
            self.bytes_read += bytes_read
            self.bytes_written += bytes_written
            self.raced += raced
            self.rejected += rejected

    def note(self, error: Exception) -> None:
        """Count a failure and keep its text."""
        with self._lock:
            self.errors += 1
            self.last_error = f"{type(error).__name__}: {error}"
