"""What a file store counts."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import msgspec


class FileStats(msgspec.Struct, kw_only=True, frozen=True):
    """State of the root, and what this open store has done since it opened."""

    files: int
    """Pages in the root, all namespaces and processes."""
    bytes_allocated: int
    """Bytes they take on disk (allocated blocks)."""
    max_size: int | None
    min_free_space: int
    free_bytes: int
    """Free on the file system."""
    exact: bool
    """False while a process that died at work, or one that is writing now, makes the count an upper bound."""
    bytes_read: int
    """Bytes moved out of files, also those of pages that then turned out wrong."""
    bytes_written: int
    """Bytes moved into files, also those of pages that another writer published first."""
    evictions: int
    evicted_bytes: int
    skipped: int
    """Pages that were to go and could not be removed."""
    temporaries_cleaned: int
    rejected: int
    """Pages refused for lack of room."""
    errors: int
    """Pages that failed for another reason."""
    last_error: str


@dataclass(slots=True)
class Counters:
    """Counts of one open store."""

    bytes_read: int = 0
    bytes_written: int = 0
    evictions: int = 0
    evicted_bytes: int = 0
    skipped: int = 0
    temporaries_cleaned: int = 0
    rejected: int = 0
    errors: int = 0
    last_error: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(
        self,
        *,
        bytes_read: int = 0,
        bytes_written: int = 0,
        rejected: int = 0,
        evictions: int = 0,
        evicted_bytes: int = 0,
        skipped: int = 0,
        temporaries_cleaned: int = 0,
    ) -> None:
        """Count; any thread may."""
        with self._lock:
            self.bytes_read += bytes_read
            self.bytes_written += bytes_written
            self.rejected += rejected
            self.evictions += evictions
            self.evicted_bytes += evicted_bytes
            self.skipped += skipped
            self.temporaries_cleaned += temporaries_cleaned

    def note(self, error: OSError) -> None:
        """Count a failure and keep its text."""
        with self._lock:
            self.errors += 1
            self.last_error = str(error)
