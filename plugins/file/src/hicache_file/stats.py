"""What a file store counts."""

from __future__ import annotations

from dataclasses import dataclass

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
    """Counts of one open store. Added to without a lock where a lost count does no harm."""

    bytes_read: int = 0
    bytes_written: int = 0
    evictions: int = 0
    evicted_bytes: int = 0
    skipped: int = 0
    temporaries_cleaned: int = 0
    rejected: int = 0
    errors: int = 0
    last_error: str = ""

    def note(self, error: OSError) -> None:
        """Count a failure and keep its text."""
        self.errors += 1
        self.last_error = str(error)
