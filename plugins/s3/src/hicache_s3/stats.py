"""What a store counts."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import msgspec


class S3Stats(msgspec.Struct, kw_only=True, frozen=True):
    """What this open store has done since it opened."""

    client: str
    """obstore or fsspec."""
    conditional_create: bool
    """Whether the server lets exactly one of several writers of a key succeed."""
    requests: int
    """Operations on one object, repetitions by the client not counted."""
    bytes_read: int
    """Bytes that came from the server, also those of pages that then turned out wrong."""
    bytes_written: int
    """Bytes of pages that the server took."""
    rejected: int
    """Pages refused for lack of room."""
    errors: int
    """Operations that failed for another reason."""
    last_error: str


@dataclass(slots=True)
class Counters:
    """Counts of one open store. Any thread may add."""

    requests: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    rejected: int = 0
    errors: int = 0
    last_error: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, *, requests: int = 0, bytes_read: int = 0, bytes_written: int = 0, rejected: int = 0) -> None:
        """Count."""
        with self._lock:
            self.requests += requests
            self.bytes_read += bytes_read
            self.bytes_written += bytes_written
            self.rejected += rejected

    def failed(self, text: str) -> None:
        """Count a failure and keep its text."""
        with self._lock:
            self.errors += 1
            self.last_error = text
